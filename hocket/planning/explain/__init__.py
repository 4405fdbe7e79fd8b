"""Explain a search: bottlenecks, rejected plans, comparison with baselines."""
