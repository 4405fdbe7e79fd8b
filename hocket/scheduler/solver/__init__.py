"""Exact solvers behind the scheduling policies."""
