"""Assignments and priority queues (AlloX)."""
