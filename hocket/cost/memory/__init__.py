"""Memory of a stage: bytes of each value of an instruction."""
