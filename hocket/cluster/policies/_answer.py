"""Answers: from a solved program to an allocation, with what holds every job back.

A type whose row has a price is full: more of its workers would help somebody. A group whose time has a price works all the
time: only faster workers would help it.
"""

import numpy as np

from hocket.cluster.allocation import ALONE, Allocation, Reason, Reasons
from hocket.cluster.policies._shares import Shares
from hocket.cluster.policies._spread import spread
from hocket.cluster.workers import WorkerType

_PRICE = 1e-9


def answer(shares: Shares, times: np.ndarray, duals: np.ndarray, objective: float, gap: float) -> Allocation:
    """The allocation of groups' times.

    Arguments:
        times: of the variables, more may follow. duals: of the limits' rows, more may follow.
        objective, gap: as an allocation has them.
    """
    entries = spread(shares.group, shares.first, shares.second, shares.column, times[: shares.variables])
    told = reasons(shares, duals)
    return Allocation(*entries, objective, gap, told, shares.refused, grouped=(shares, times[: shares.variables]))


def reasons(shares: Shares, duals: np.ndarray) -> Reasons:
    """What holds every job back, by the duals of the limits' rows; more may follow."""
    return Reasons(len(shares.group), lambda: _reasons(shares, duals))


def _reasons(shares: Shares, duals: np.ndarray) -> tuple[Reason, ...]:
    types, kind = shares.snapshot.types, shares.snapshot.type_of[shares.column]
    prices = np.abs(duals) > _PRICE
    bits = (prices[shares.groups : shares.groups + len(types)] << np.arange(len(types)))[kind]
    codes = np.zeros(shares.groups, dtype=np.int64)
    np.bitwise_or.at(codes, shares.first, bits)
    both = shares.second != ALONE
    np.bitwise_or.at(codes, shares.second[both], bits[both])
    codes[prices[: shares.groups]] = -1
    by_code = {code: _reason(code, types) for code in set(codes.tolist())}
    told = [by_code[code] for code in codes.tolist()]
    if not shares.refused:
        return tuple([told[g] for g in shares.group.tolist()])
    return tuple(
        told[g] if g >= 0 else Reason(shares.refused[j], "other workers, or a smaller scale factor")
        for j, g in enumerate(shares.group.tolist())
    )


def _reason(code: int, types: tuple[WorkerType, ...]) -> Reason:
    """Of a group that is at work all the time (-1), or that runs on the full types whose bits are in the code."""
    if code < 0:
        return Reason("it runs all the time", "faster workers, or more of the fastest that it has")
    crowded = [own.name for k, own in enumerate(types) if code >> k & 1]
    if not crowded:
        return Reason("nothing: more would not help what the policy is after")
    names = " and ".join(crowded)
    return Reason(f"{names} {'is' if len(crowded) == 1 else 'are'} full", f"more workers of {names}")
