"""Verification: training under a plan against a plain loop of the same update rule."""
