"""Guard against losses and gradients that are not finite."""
