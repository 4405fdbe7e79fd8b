"""Swap traffic and host memory of a simulated run (Harmony)."""
