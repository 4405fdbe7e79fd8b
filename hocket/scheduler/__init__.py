"""Cluster scheduler (Gavel): many jobs on heterogeneous workers.

Gavel is chapter 5 of Narayanan's dissertation; chapter 6 adds costs.

A policy maps a Snapshot (model/snapshot.py) to an Allocation (model/allocation.py): the fraction of time for each
job, or pair of jobs, on each worker type. Rounds turn fractions into leases (rounds/priorities.py,
rounds/placement.py). The core is one function from a state and an event to commands (core/core.py). The simulator
drives it. It has no clock of its own, so that a service can drive it as well. This package uses no torch, clock,
sockets or threads.
"""
