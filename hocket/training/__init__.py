"""Training: starts and watches workers, and measures and checks real runs.

Each worker trains its part of a plan.
"""
