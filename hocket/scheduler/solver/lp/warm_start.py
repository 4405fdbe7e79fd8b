"""Warm starts when the same jobs are regrouped.

If a group is split, the largest part inherits its time and states; the others start without. The solver completes a
basis that does not fit exactly, and the solution is as good as without it.
"""

import numpy as np

from hocket.scheduler.model.allocation import ALONE
from hocket.scheduler.solver.lp.linear_program import Basis
from hocket.scheduler.solver.lp.variables import AllocationVariables

_AT_LOWER, _BASIC = 0, 1


def inherited(
    shares: AllocationVariables, before: AllocationVariables, inside: np.ndarray, basis: Basis, own: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Initial variables of the solver, and states of its columns and rows.

    Arguments:
        inside: variables that were in the solver before.
        own: number of the solver's own columns in front of them, unchanged.
        basis: states of columns and rows: of groups, of types, and of groups again.
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
    """Code of each variable from its renamed groups and column; -1 without a name.

    Arguments:
        group: new name of each group, < groups; -1 for none.
    """
    first, alone = group[shares.first], shares.second == ALONE
    second = np.where(alone, -1, group[shares.second])
    low, high = np.where(alone, first, np.minimum(first, second)), np.where(alone, -1, np.maximum(first, second))
    known = (first >= 0) & (alone | (second >= 0))
    return np.where(known, (low * (groups + 1) + high + 1) * len(shares.snapshot.columns) + shares.column, -1)


def sought_in(codes: np.ndarray, order: np.ndarray, sought: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Position of each sought code among known codes, and whether it was found.

    Arguments:
        order: sorting order of the known codes.
    """
    at = order[np.searchsorted(codes[order], sought).clip(max=len(codes) - 1)]
    return at, (codes[at] == sought) & (sought >= 0)
