"""Burst-parallel plans (DeepPool): limits on amplification."""
