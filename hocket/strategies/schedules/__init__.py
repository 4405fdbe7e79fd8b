"""Strategies: one file for each; `strategies/base/strategy.py` has the interface."""
