"""Proof of a program: reads, versions, updates, deadlock."""
