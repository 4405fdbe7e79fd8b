"""Harmony's tuner: packs of layers and microbatch sizes for models that swap."""
