"""The burst-parallel planner (DeepPool)."""
