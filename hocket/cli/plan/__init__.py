"""Commands about plans: `plan`, `simulate`, `compare`, `what-if`, `scaling`."""
