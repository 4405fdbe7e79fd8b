"""Cost models: seconds of instructions and bytes of values, given a profile, a cluster and concurrent work."""
