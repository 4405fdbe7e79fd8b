"""Inherited: where a solver is to begin when the same jobs are in other groups than before.

Of several groups that were one, the largest has its time and its states; the others begin without any. A basis that does not
quite fit is completed by the solver, and the answer is as good as from none.
"""

import numpy as np

from hocket.cluster.allocation import ALONE
from hocket.cluster.policies._lp import Basis
from hocket.cluster.policies._shares import Shares

_AT_LOWER, _BASIC = 0, 1


def inherited(
    shares: Shares, before: Shares, inside: np.ndarray, basis: Basis, own: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Variables that begin in the solver, and states of its columns and rows.

    Arguments:
        inside: variables that were in the solver before. own: how many columns it had, and has, in front of them.
        basis: states of columns and rows: of groups, of types, and of groups again.
    """
    was = before.group[shares.member]
    order = np.argsort(-shares.count, kind="stable")
    heir = np.zeros(shares.groups, dtype=bool)
    heir[order[np.unique(was[order], return_index=True)[1]]] = True
    alone = shares.second == ALONE
    codes = _codes(before, before.first, before.second, before.column)[inside]
    sought = _codes(before, was[shares.first], np.where(alone, ALONE, was[shares.second]), shares.column)
    order = np.argsort(codes)
    at = order[np.searchsorted(codes[order], sought).clip(max=len(codes) - 1)]
    found = codes[at] == sought
    begins = np.flatnonzero(found | alone)
    columns, rows = basis
    kept = found & heir[shares.first] & (alone | heir[shares.second])
    states = np.where(kept, columns[own + at], _AT_LOWER)[begins]
    types = before.groups + len(shares.snapshot.types)
    times, levels = (np.where(heir, part[was], _BASIC) for part in (rows[: before.groups], rows[types:]))
    return begins, np.append(columns[:own], states), np.concatenate([times, rows[before.groups : types], levels])


def _codes(shares: Shares, first: np.ndarray, second: np.ndarray, column: np.ndarray) -> np.ndarray:
    """A number for each variable of these groups and columns, the same whichever group is first."""
    low, high = np.minimum(first, second), np.maximum(first, second)
    return ((low + 1) * shares.groups + high) * len(shares.snapshot.columns) + column
