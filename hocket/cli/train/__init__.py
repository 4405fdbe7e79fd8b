"""Commands for training and for what it writes: `train`, `verify`, `demo`, `init`, `checkpoints`, `export`."""
