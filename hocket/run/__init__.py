"""Run a Program for real: the only room, with the measuring half of profile/, that knows torch."""
