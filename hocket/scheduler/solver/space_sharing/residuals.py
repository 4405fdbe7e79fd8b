"""Residual demand: tiny demands that a solver cannot distinguish from zero.

Jobs that are nearly finished have tiny demands beside jobs of days, and pairing also has rounding errors. The unmet
part is added to an allocation, alone on the job's fastest workers. It is about the solver's tolerance and is deducted
from other jobs on a full type. Without it, such a job would never complete.
"""

import numpy as np

from hocket.scheduler.model.allocation import ALONE, Allocation
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.ungroup import Entries
from hocket.scheduler.solver.parametric.demand_groups import GroupLines

CRUMB = 1e-8  # part of a group's maximum throughput; a solver keeps larger demands
_LITTLE = 1e-5  # part of a group's maximum throughput; above it, rounding does not matter without pairs
_SHORT = 1e-7  # relative tolerance of unmet demand


def with_crumbs(lines: GroupLines, demand: np.ndarray, entries: Entries, snapshot: Snapshot) -> Entries:
    """Add unmet tiny demands to the entries of an allocation.

    Arguments:
        demand: steps per second, by job; 0 for jobs that cannot run.
        snapshot: snapshot with pairs, if entries have pairs; the snapshot of `lines` may lack them.
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
