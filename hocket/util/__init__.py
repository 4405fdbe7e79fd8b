"""Utilities without knowledge of training: files, documents, units, registry."""
