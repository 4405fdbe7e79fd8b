"""Tensor-parallel groups at run time: sharded models and process groups."""
