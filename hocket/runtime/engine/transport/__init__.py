"""Messages between workers: connections, process groups, shared memory."""
