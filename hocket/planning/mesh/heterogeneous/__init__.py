"""Parallel layouts on devices of several types."""
