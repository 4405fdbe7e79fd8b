"""Parallel layouts (PTD-P): pipeline x tensor x data parallelism, for analytic models."""
