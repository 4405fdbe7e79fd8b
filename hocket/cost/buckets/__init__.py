"""Contention of gradient all-reduces with computation (LIBRA): the model and its fit."""
