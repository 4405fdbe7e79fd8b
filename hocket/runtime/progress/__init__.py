"""Progress of a worker: where it stands in its program, what it recorded, and when it may stop."""
