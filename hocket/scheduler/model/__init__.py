"""Types of the scheduler: job, worker type, throughputs, snapshot, allocation, lease."""
