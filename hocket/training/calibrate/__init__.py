"""Measurements of a machine: links, engine overhead, waves, plans in turns."""
