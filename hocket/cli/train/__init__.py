"""Commands that train: `train`, `demo`."""
