"""Readers of other systems' profiles, each with `read(path) -> ModelProfile`.

There is one file for each format. A file with a name that begins with '_' helps several readers.
"""
