"""Profiles without measurement: from transformer sizes or from fake tensors."""
