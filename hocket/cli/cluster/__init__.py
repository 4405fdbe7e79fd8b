"""Commands of `hocket cluster`, one file each, and their shared options."""
