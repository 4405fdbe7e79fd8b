"""Weight updates: gradient buckets, clipping, optimizer steps, weight versions."""
