"""Profiles: layers of a job with seconds and bytes, and tensors between them."""
