"""Scheduler types: job, worker type, throughputs, snapshot, allocation, lease."""
