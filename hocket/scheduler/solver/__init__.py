"""Exact solvers behind the policies."""
