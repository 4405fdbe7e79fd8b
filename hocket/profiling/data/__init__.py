"""Samples of the dataset: their order, seeding and repeatability."""
