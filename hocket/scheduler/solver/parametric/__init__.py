"""Parametric searches: smallest pace, deadlines, costs."""
