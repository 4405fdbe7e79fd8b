"""Analytic cost of a transformer, from its sizes and a device type.

No measurement is needed.
"""
