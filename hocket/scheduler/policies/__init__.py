"""Policies: one module per policy, from a Snapshot to an Allocation.

Every policy is a module with

    PAPER: str                                          source of the policy
    SHARES: bool                                        True if two jobs may share workers, with space sharing
    ENTITIES: bool                                      True if workers are divided among entities
    allocate(snapshot, session=None) -> Allocation      the allocation

A Session (scheduler/solver/lp/session.py) keeps solver state of the previous call, to warm-start the next one. Without
a session, the objective is the same. If the solver fails, `allocate` raises SolverTrouble; the policy object of
core/policy_by_name.py then falls back to its last allocation. Policies do not read a clock; times are in the snapshot.
"""
