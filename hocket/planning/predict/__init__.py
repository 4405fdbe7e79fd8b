"""Prediction for one plan: iteration time, memory, stage table."""
