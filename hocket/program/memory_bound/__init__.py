"""Upper bound on the memory of a program, over every legal timing."""
