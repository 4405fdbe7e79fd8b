"""Commands about plans: `plan`, `simulate`, `compare`, `whatif`, `scaling`."""
