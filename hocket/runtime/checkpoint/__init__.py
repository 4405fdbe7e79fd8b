"""Checkpoints: atomic writes, retention, resume under any plan."""
