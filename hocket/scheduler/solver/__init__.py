"""Exact solvers behind the scheduling policies.

A price is a dual variable of a linear program, except in lp/hourly_cost.py, which has dollars. Worker prices are one
dual for each worker type: the gain from one more worker.
"""
