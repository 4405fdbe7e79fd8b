"""Gradient buckets and communication threads, chosen together (LIBRA)."""
