"""Warm starts when the same jobs are regrouped.

If a group is split, its largest part inherits the basis states of its variables and rows; the other parts start
without. The solver completes a basis that does not fit exactly. The basis saves time, and does not change the quality
of the solution.
"""

import numpy as np

from hocket.scheduler.model.allocation import ALONE
from hocket.scheduler.solver.lp.linear_program import Basis
from hocket.scheduler.solver.lp.variables import AllocationVariables

_AT_LOWER, _BASIC = 0, 1


def inherited(
    shares: AllocationVariables, before: AllocationVariables, inside: np.ndarray, basis: Basis, own: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Initial variables and basis of a solver, from a solve with other groups.

    Arguments:
        shares, before: new and previous groups of the same jobs.
        inside: indices of the previous variables that were in the solver.
        own: number of extra columns of the solver in front of these variables; their states are kept.
        basis: states of the solver's columns, and of its rows: time of each group, workers of each type, level of
            each group.

    Returns:
        Indices of the new variables to start with; states of the solver's columns; states of its rows.
    """
    was = before.group[shares.member]
    order = np.argsort(-shares.count, kind="stable")
    heir = np.zeros(shares.groups, dtype=bool)
    heir[order[np.unique(was[order], return_index=True)[1]]] = True
    alone = shares.second == ALONE
    codes = codes_of(before, np.arange(before.groups), before.groups)[inside]
    at, found = sought_in(codes, np.argsort(codes), codes_of(shares, was, before.groups))
    begins = np.flatnonzero(found | alone)
    columns, rows = basis
    kept = found & heir[shares.first] & (alone | heir[shares.second])
    states = np.where(kept, columns[own + at], _AT_LOWER)[begins]
    types = before.groups + len(shares.snapshot.types)
    times, levels = (np.where(heir, part[was], _BASIC) for part in (rows[: before.groups], rows[types:]))
    return begins, np.append(columns[:own], states), np.concatenate([times, rows[before.groups : types], levels])


def codes_of(shares: AllocationVariables, group: np.ndarray, groups: int) -> np.ndarray:
    """Integer code of each variable, from its column and its groups' new indices.

    Arguments:
        group: new index of each group, below `groups`; -1 for none. A variable of such a group gets the code -1.
        groups: number of new indices.
    """
    first, alone = group[shares.first], shares.second == ALONE
    second = np.where(alone, -1, group[shares.second])
    low, high = np.where(alone, first, np.minimum(first, second)), np.where(alone, -1, np.maximum(first, second))
    known = (first >= 0) & (alone | (second >= 0))
    return np.where(known, (low * (groups + 1) + high + 1) * len(shares.snapshot.columns) + shares.column, -1)


def sought_in(codes: np.ndarray, order: np.ndarray, sought: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Position of each sought code in `codes`, and a mask of the codes found there.

    Arguments:
        codes: known codes.
        order: argsort of the known codes.
        sought: codes to find; negative ones are never found. The position of a code that is not found is arbitrary.
    """
    at = order[np.searchsorted(codes[order], sought).clip(max=len(codes) - 1)]
    return at, (codes[at] == sought) & (sought >= 0)
