"""Shared parts of strategies: interface, orders of tasks, balance of stages."""
