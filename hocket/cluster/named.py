"""Policies by name, each with a memory of its own, and the versions of them that see no types of workers.

Source: the baselines of section 5.7.3.
"""

from dataclasses import replace

import numpy as np

from hocket.cluster.agnostic import agnostic
from hocket.cluster.allocation import ALONE, Allocation
from hocket.cluster.core import Policy
from hocket.cluster.session import Session
from hocket.cluster.snapshot import Snapshot
from hocket.registry import load


def policy_named(name: str, blind: bool = False) -> Policy:
    """A policy with a memory of its own, from one snapshot to the next; blind: as it is for one who sees no types.

    Raises:
        InputError: there is none of this name.
    """
    module, session = load("hocket.cluster.policies", name, "policy"), Session()

    def allocate(snapshot: Snapshot) -> Allocation:
        found: Allocation = module.allocate(agnostic(snapshot) if blind else snapshot, session)
        return evenly(found, snapshot) if blind else found

    return allocate


def evenly(allocation: Allocation, snapshot: Snapshot) -> Allocation:
    """The same time for each job, on every type in proportion to its workers, as far as there are so many.

    Who sees no types has no reason to prefer one. Of all answers that are as good, a solver's vertex may leave types out; the
    public policies' interior-point solver ends in the middle.
    """
    workers = snapshot.workers[snapshot.type_of]
    consolidated = np.array([c.consolidated for c in snapshot.columns])
    runs = (snapshot.throughputs > 0) & consolidated & (snapshot.scale[:, None] <= workers)
    share = runs * workers
    total = share.sum(axis=1, keepdims=True)
    times = np.bincount(allocation.first, allocation.fraction, len(snapshot.jobs))
    fraction = times[:, None] * np.divide(share, total, out=np.zeros_like(share), where=total > 0)
    used = np.zeros(len(snapshot.types))
    np.add.at(used, snapshot.type_of, snapshot.scale @ fraction)
    fraction *= np.minimum(1.0, snapshot.workers / np.maximum(used, 1e-12))[snapshot.type_of]
    first, column = np.nonzero(fraction)
    return replace(
        allocation,
        first=first,
        second=np.full(len(first), ALONE),
        column=column,
        fraction=fraction[first, column],
    )
