"""Crumbs: what jobs that are nearly done ask for beside jobs of days, which is less than a solver tells from nothing.

Who is beside whom is laid out to within rounding as well. What a job lacks by that is added to an answer, alone on its fastest
workers: about the solver's tolerance, by which all others of a type that is full have less. Without it the job would never end.
"""

import numpy as np

from hocket.scheduler.model.allocation import ALONE, Allocation
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.ungroup import Entries
from hocket.scheduler.solver.parametric.demand_groups import GroupLines

CRUMB = 1e-8  # of what a group can do in all: more of it a solver does not lose
_LITTLE = 1e-5  # of that: who asks for more does not miss what rounding takes where nobody is beside another
_SHORT = 1e-7  # relative: who lacks so little of what it asks for has it


def with_crumbs(lines: GroupLines, demand: np.ndarray, entries: Entries, snapshot: Snapshot) -> Entries:
    """Entries of an allocation, and for jobs whose little was lost as much as they lack of it.

    Arguments:
        demand: steps a second, by job; 0 for those that run nowhere.
        snapshot: with the pairs that entries may be of; that of lines may be without.
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
