"""Parametric linear programs: minimum pace, deadlines, costs."""
