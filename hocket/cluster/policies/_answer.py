"""Answers: from a solved program to an allocation, with what holds every job back.

A type whose row has a price is full: more of its workers would help somebody. A group whose time has a price works all the
time: only faster workers would help it.
"""

import numpy as np

from hocket.cluster.allocation import Allocation, Reason
from hocket.cluster.policies._shares import Shares
from hocket.cluster.policies._spread import spread

_PRICE = 1e-9


def answer(shares: Shares, times: np.ndarray, duals: np.ndarray, objective: float, gap: float) -> Allocation:
    """The allocation of groups' times.

    Arguments:
        times: of the variables, more may follow. duals: of the limits' rows, more may follow.
        objective, gap: as an allocation has them.
    """
    entries = spread(shares.group, shares.first, shares.second, shares.column, times[: shares.variables])
    reasons = _reasons(shares, times[: shares.variables], duals)
    return Allocation(*entries, objective, gap, reasons, shares.refused)


def _reasons(shares: Shares, times: np.ndarray, duals: np.ndarray) -> tuple[Reason, ...]:
    snapshot = shares.snapshot
    full = np.abs(duals[shares.groups : shares.groups + len(snapshot.types)]) > _PRICE
    busy = np.abs(duals[: shares.groups]) > _PRICE
    runs = np.zeros((shares.groups, len(snapshot.types)), dtype=bool)
    for groups in (shares.first, shares.second):
        there = groups >= 0
        runs[groups[there], snapshot.type_of[shares.column[there]]] = True
    told = []
    for g in range(shares.groups):
        crowded = [snapshot.types[k].name for k in np.flatnonzero(full & runs[g]).tolist()]
        if busy[g]:
            told.append(Reason("it runs all the time", "faster workers, or more of the fastest that it has"))
        elif crowded:
            names = " and ".join(crowded)
            told.append(Reason(f"{names} {'is' if len(crowded) == 1 else 'are'} full", f"more workers of {names}"))
        else:
            told.append(Reason("nothing: more would not help what the policy is after"))
    refused = shares.refused
    return tuple(
        told[g] if g >= 0 else Reason(refused[j], "other workers, or a smaller scale factor")
        for j, g in enumerate(shares.group.tolist())
    )
