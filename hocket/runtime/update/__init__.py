"""Weight updates: gradient buckets, clipping, loss scale, optimizer step, weight versions."""
