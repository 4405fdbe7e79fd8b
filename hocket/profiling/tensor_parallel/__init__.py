"""Tensor parallelism of unedited models: find a split, prove it and apply it."""
