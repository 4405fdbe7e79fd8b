"""Initial weights: files that a run starts from instead of the job's own values."""
