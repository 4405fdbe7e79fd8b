"""Loggers: callbacks that write the figures of a run; a file's name is the name of its format.

Each file has a constant LOGGER (a class, made from a path), NEEDS (a package that must be installed) and TARGET (FILE or
DIR).
"""
