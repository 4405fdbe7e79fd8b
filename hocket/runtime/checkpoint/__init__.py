"""Checkpoints: written atomically, kept, resumed under any plan."""
