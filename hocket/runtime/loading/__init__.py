"""Loader processes, which read samples ahead of the program."""
