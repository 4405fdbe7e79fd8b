"""Harmony's tuner: packs and microbatches."""
