"""Simulation: time and memory of a program on a cluster, before a launch."""
