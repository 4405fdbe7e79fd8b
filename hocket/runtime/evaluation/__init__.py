"""Evaluation between the segments of a run: the model in evaluation mode, on the weights and devices of the training."""
