"""Profiles: the layers of a job with their seconds and bytes, and the tensors between them."""
