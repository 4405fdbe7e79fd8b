"""Commands that train: `train`, `verify`, `demo`, `init`."""
