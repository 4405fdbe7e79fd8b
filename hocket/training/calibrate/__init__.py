"""Measurements of the machine itself: links, engine overhead, waves, plans trained in turns."""
