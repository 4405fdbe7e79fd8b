"""The HTML report of a cluster simulation."""
