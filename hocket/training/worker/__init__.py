"""One worker of a training run, from its plan to its last checkpoint."""
