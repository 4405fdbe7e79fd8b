"""Checks of a job before it is measured: the same result for any microbatch, at every call."""
