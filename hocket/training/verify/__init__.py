"""Verification of training under a plan.

It compares with a plain loop of the same update rule.
"""
