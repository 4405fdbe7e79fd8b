"""Dual decomposition of large linear programs in which jobs share only workers.

Prices are duals: worker prices are one dual for each worker type, no dollars.
"""
