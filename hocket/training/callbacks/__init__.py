"""Callbacks: the user's own code that runs while a job trains."""
