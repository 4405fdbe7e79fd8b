"""Simulation of a cluster: traces, workloads, metrics."""
