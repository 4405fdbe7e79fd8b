"""Measurement of a captured job: seconds and bytes of each layer."""
