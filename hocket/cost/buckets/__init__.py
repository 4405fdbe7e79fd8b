"""Contention of gradient all-reduces with computation (LIBRA): model and fit."""
