"""Residual demand: tiny demands that a solver cannot distinguish from zero.

Jobs that are nearly finished have tiny demands beside jobs that take days, and pairing also has rounding errors. The
unmet part of such a demand is added to an allocation, without a partner on the job's fastest workers. If the worker
type is full, the times of all its jobs are reduced accordingly, by about the solver's tolerance. Without this, a
nearly finished job would never complete.
"""

import numpy as np

from hocket.scheduler.model.allocation import ALONE, Allocation
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.ungroup import Entries
from hocket.scheduler.solver.parametric.demand_groups import GroupLines

CRUMB = 1e-8  # fraction of a group's maximum throughput; the solver meets larger demands
_LITTLE = 1e-5  # fraction of a group's maximum throughput; above it, rounding does not matter without pairs
_SHORT = 1e-7  # relative tolerance of unmet demand


def with_crumbs(lines: GroupLines, demand: np.ndarray, entries: Entries, snapshot: Snapshot) -> Entries:
    """Add unmet tiny demands to the entries of an allocation.

    Arguments:
        lines: groups of jobs and their options.
        demand: steps per second, by job; 0 for jobs that cannot run.
        entries: entries of the allocation.
        snapshot: snapshot with `pairs` if the entries have pairs; the snapshot in `lines` may lack them.
    """
    group = lines.shares.group
    most = np.append(lines.most, 0.0)[group]
    little = (demand > 0) & (demand <= _LITTLE * most)
    if snapshot.pairs is None and not little.any():
        return entries
    found = Allocation(*entries, 0.0)
    lack = demand - found.throughput(snapshot)
    lost = np.flatnonzero((lack > _SHORT * demand) & (lack <= CRUMB * most))
    if not len(lost):
        return entries
    alone = np.flatnonzero(lines.shares.second[lines.variable] == ALONE)
    alone = alone[np.lexsort((-lines.steps[alone], lines.group[alone]))]
    fastest = alone[np.searchsorted(lines.group[alone], group[lost])]
    idle = np.maximum(1 - found.dense(snapshot)[lost].sum(axis=1), 0.0)
    part = np.minimum(lack[lost] / lines.steps[fastest], idle)
    more = lost, np.full(len(lost), ALONE), lines.shares.column[lines.variable[fastest]], part
    first, second, column, fraction = (np.concatenate(both) for both in zip(entries, more, strict=True))
    who, at = np.unique(np.stack([first, second, column]), axis=1, return_inverse=True)
    time, kind = np.bincount(at.ravel(), fraction), snapshot.type_of[who[2]]
    used = np.bincount(kind, snapshot.scale[who[0]] * time, len(snapshot.workers))
    there = np.minimum(1.0, snapshot.workers / np.maximum(used, snapshot.workers + (used == 0)))
    return who[0], who[1], who[2], time * there[kind]
