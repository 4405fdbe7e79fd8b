"""Checkpoints: atomic writes, removal of old ones, and resume under any plan."""
