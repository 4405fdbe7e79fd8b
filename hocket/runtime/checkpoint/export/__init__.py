"""Export: the weights of a checkpoint in files that other programs read."""
