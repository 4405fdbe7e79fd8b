"""Allocation from a solved linear program, and the binding constraint of each job.

A price is the dual of a row. A worker type with a price is full: more of its workers would help. A group with a price
on its time runs all the time: only faster workers would help. A group that always runs on its fastest workers counts
as such too, even without this price: the upper bounds of the variables limit its time as well.
"""

import numpy as np

from hocket.scheduler.model.allocation import ALONE, Allocation, Reason, Reasons
from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.solver.lp.ungroup import spread
from hocket.scheduler.solver.lp.variables import AllocationVariables

_PRICE = 1e-9  # smaller prices count as 0
_SAME = 1e-9  # relative tolerance
ENOUGH = Reason("it has its required share", "a policy that requires more")  # neither time nor workers are binding


def answer(
    shares: AllocationVariables, times: np.ndarray, duals: np.ndarray, objective: float, gap: float
) -> Allocation:
    """Allocation from the solution of a linear program.

    Arguments:
        times: values of the variables; values of extra variables after them are ignored.
        duals: duals of the rows of `shares.limits`; duals of extra rows after them are ignored.
        objective, gap: see Allocation.
    """
    entries = spread(shares.group, shares.first, shares.second, shares.column, times[: shares.variables])
    told = reasons(shares, duals, times[: shares.variables])
    return Allocation(*entries, objective, gap, told, shares.refused, grouped=(shares, times[: shares.variables]))


def reasons(shares: AllocationVariables, duals: np.ndarray, times: np.ndarray | None = None) -> Reasons:
    """Binding constraint of each job, computed when first read.

    Arguments:
        duals: duals of the rows of `shares.limits`; duals of extra rows after them are ignored.
        times: values of the variables; None if jobs get more time than these variables show.
    """
    return Reasons(len(shares.group), lambda: _reasons(shares, duals, times))


def _reasons(shares: AllocationVariables, duals: np.ndarray, times: np.ndarray | None) -> tuple[Reason, ...]:
    types, kind = shares.snapshot.types, shares.snapshot.type_of[shares.column]
    prices = np.abs(duals) > _PRICE
    bits = (prices[shares.groups : shares.groups + len(types)] << np.arange(len(types)))[kind]
    codes = np.zeros(shares.groups, dtype=np.int64)
    np.bitwise_or.at(codes, shares.first, bits)
    both = shares.second != ALONE
    np.bitwise_or.at(codes, shares.second[both], bits[both])
    codes[prices[: shares.groups]] = -1
    if times is not None:
        always, fastest = _always(shares, times)
        codes[always & (fastest | (codes == 0))] = -1
    by_code = {code: _reason(code, types) for code in set(codes.tolist())}
    told = [by_code[code] for code in codes.tolist()]
    if not shares.refused:
        return tuple([told[g] for g in shares.group.tolist()])
    return tuple(
        told[g] if g >= 0 else Reason(shares.refused[j], "other workers, or a smaller scale factor")
        for j, g in enumerate(shares.group.tolist())
    )


def _always(shares: AllocationVariables, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mask of the groups that run all the time, and mask of the groups at maximum throughput."""
    groups, variables, steps = shares.throughput
    does = np.bincount(groups, steps * times[variables], shares.groups)
    most = np.zeros(shares.groups)
    np.maximum.at(most, groups, steps * shares.count[groups])
    total = np.bincount(groups, times[variables], shares.groups)
    return total >= shares.count * (1 - _SAME), does >= most * (1 - _SAME)


def _reason(code: int, types: tuple[WorkerType, ...]) -> Reason:
    """Reason of a group, from its binding constraint.

    Arguments:
        code: -1 if the group runs all the time, else a bit mask of the full worker types that it uses; 0 if it has
            its required share.
        types: all worker types; bit k is type k.
    """
    if code < 0:
        return Reason("it runs all the time", "faster workers, or more of the fastest that it has")
    crowded = [own.name for k, own in enumerate(types) if code >> k & 1]
    if not crowded:
        return ENOUGH
    names = " and ".join(crowded)
    return Reason(f"{names} {'is' if len(crowded) == 1 else 'are'} full", f"more workers of {names}")
