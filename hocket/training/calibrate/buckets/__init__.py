"""Measured contention of all-reduces with computation (LIBRA)."""
