"""One worker's stage of the model: modules, data, stashed activations."""
