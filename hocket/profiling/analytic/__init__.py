"""Profiles without measuring: from transformer sizes, or from a model on fake tensors."""
