"""Throughput estimates for unprofiled jobs: fingerprints, matrix completion."""
