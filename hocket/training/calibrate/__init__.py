"""Measurements of the machine itself.

These are links, engine overhead, waves, and plans trained in turns.
"""
