"""Checks before profiling: equal results for any microbatch, at every call."""
