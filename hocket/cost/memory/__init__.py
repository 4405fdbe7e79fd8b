"""Memory: bytes of values, and of instructions while they run."""
