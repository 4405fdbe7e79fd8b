"""Weight updates.

Gradient buckets, clipping, loss scale, optimizer step and weight versions.
"""
