"""Learning rates at each training step."""
