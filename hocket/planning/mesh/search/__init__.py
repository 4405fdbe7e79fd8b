"""Branch and bound over the parallel layouts of an analytic model."""
