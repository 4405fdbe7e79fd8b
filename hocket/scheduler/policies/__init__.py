"""Policies: one file each, from a Snapshot to an Allocation.

Every member is a module with

    PAPER: str                                          where the idea comes from
    allocate(snapshot, session=None) -> Allocation      the answer

A Session (scheduler/solver/lp/session.py) keeps what the last answer of the same policy knew, so that the next one is quick, and the answer
itself for when the solver fails; without it the answer has the same objective. Members know no clock: what depends on time is
in the snapshot.
"""
