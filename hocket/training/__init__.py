"""Training: start and watch workers, each with its part of a plan.

It also measures and verifies real runs.
"""
