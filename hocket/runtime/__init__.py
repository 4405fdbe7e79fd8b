"""Run a Program for real: the only room, with the measuring half of profiling/, that knows torch."""
