"""Swap volumes (Harmony): bytes that an iteration moves between devices and host."""
