"""Lower bounds on the iteration time and memory of a candidate."""
