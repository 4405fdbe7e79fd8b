"""Strategies: one file each; the interface is `strategies/base/strategy.py`."""
