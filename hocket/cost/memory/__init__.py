"""Memory of a stage: bytes of each value that an instruction reads, writes or frees."""
