"""Capture of an unedited module: its operations as a graph, cut into layers."""
