"""Losses of an update: their factors, their weights, and the loss scale of float16."""
