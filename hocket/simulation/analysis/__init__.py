"""Analysis of a simulated run: traffic, and the gain from overlap."""
