"""Simulation: the time and memory of a program on a cluster, before anything is launched."""
