"""Policies: one module per policy, from a Snapshot to an Allocation.

Every policy is a module with

    PAPER: str                                          source of the policy
    SHARES: bool                                        True if two jobs may share workers, with space sharing
    ENTITIES: bool                                      True if workers are divided among entities
    allocate(snapshot, session=None) -> Allocation      the allocation

A Session (scheduler/solver/lp/session.py) keeps solver state of the previous call, to warm-start the next one, and
the last allocation, as a fallback if the solver fails. Without a session, the objective is the same. Policies do not
read a clock; times are in the snapshot.
"""
