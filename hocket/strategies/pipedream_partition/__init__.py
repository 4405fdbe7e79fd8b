"""PipeDream's partitioning algorithm."""
