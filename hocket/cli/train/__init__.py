"""Commands that train, and commands for checkpoints: `train`, `verify`, `demo`, `checkpoints`, `export`."""
