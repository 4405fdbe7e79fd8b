"""Tensor parallelism of unedited models: find a division, prove it by running it, apply it to modules."""
