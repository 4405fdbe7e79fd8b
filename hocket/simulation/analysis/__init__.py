"""Analysis of a simulated run: traffic, overlap and its gain."""
