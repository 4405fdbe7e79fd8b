"""The cluster: how many jobs share workers of unlike types. No torch, no clock, no sockets, no threads.

What a policy is told is a Snapshot (snapshot.py), what it answers an Allocation (allocation.py): fractions of time for each
job, or pair of jobs, on each type of worker. Rounds turn fractions into leases (priorities.py, placement.py); the core is one
function from a state and an event to commands (core.py), driven by the simulator or by a live service.
"""
