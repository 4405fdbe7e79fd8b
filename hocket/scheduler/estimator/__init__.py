"""Throughput estimates for jobs that were not profiled: fingerprints, matrix completion."""
