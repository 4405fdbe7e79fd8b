"""Pairing: construct job pairs from each job's time beside kinds of jobs.

Jobs of one kind have the same space-sharing class and scale factor. Any matching works, because the times of two kinds
beside each other are equal, and no job is beside its own kind for more than half of the kind's total time with itself
(column_generation.py).
"""

import numpy as np

from hocket.scheduler.solver.lp.ungroup import Entries, spread
from hocket.scheduler.solver.lp.variables import AllocationVariables
from hocket.scheduler.solver.space_sharing.time_windows import halves, matched

_USED = 1e-9  # smaller times are ignored


def laid_out(shares: AllocationVariables, kind: np.ndarray, role: tuple[np.ndarray, ...], x: np.ndarray) -> Entries:
    """Entries of an allocation: jobs alone, and job pairs matched from the roles.

    Arguments:
        shares: groups without pairs, and their variables.
        kind: kind of each group.
        role: group, kind of the partner and column of each role; three arrays.
        x: value of each variable of `shares`, then time of each role, both summed over a group's jobs.
    """
    group, beside, column = role
    alone = spread(shares.group, shares.first, shares.second, shares.column, x[: shares.variables])
    parts = [alone]
    time = x[shares.variables : shares.variables + len(group)] / shares.count[group]
    order = np.argsort(shares.group, kind="stable")
    ends = np.cumsum(np.bincount(shares.group + 1, minlength=shares.groups + 1))
    sides: dict[tuple[int, int, int], tuple[list[np.ndarray], list[np.ndarray]]] = {}
    for r in np.flatnonzero(time > _USED).tolist():
        g = group[r]
        alike = order[ends[g] : ends[g + 1]]
        side = sides.setdefault((int(kind[g]), int(beside[r]), int(column[r])), ([], []))
        side[0].append(alike)
        side[1].append(np.full(len(alike), time[r]))
    for (own, other, at), (jobs, times) in sides.items():
        if own > other or (other, own, at) not in sides:
            continue
        a, time_a = np.concatenate(jobs), np.concatenate(times)
        if own == other:
            i, j, both = matched(*halves(a, time_a, time_a.sum() / 2))
            unlike = i != j  # a job with slightly more than half would be paired with itself
            i, j, both = i[unlike], j[unlike], both[unlike]
        else:
            b, time_b = (np.concatenate(part) for part in sides[other, own, at])
            i, j, both = matched(a, time_a, b, time_b)
        parts.append((np.minimum(i, j), np.maximum(i, j), np.full(len(i), at), both))
    return tuple(np.concatenate([part[k] for part in parts]) for k in range(4))  # type: ignore[return-value]
