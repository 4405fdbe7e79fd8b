"""Progress of a worker: position in its program, records, and when it may stop."""
