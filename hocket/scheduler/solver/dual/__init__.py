"""Dual decomposition of large separable programs."""
