"""Verification of training under a plan, against a plain loop of its update rule."""
