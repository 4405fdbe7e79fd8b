"""Allocation from a solved program, with the binding constraint of each job.

A type with a row price is full: more of its workers would help. A group with a time price runs all the time: only
faster workers would help. A group that always runs on its fastest workers counts the same way, even if the price is
elsewhere, because time is also bounded by the variables.
"""

import numpy as np

from hocket.scheduler.model.allocation import ALONE, Allocation, Reason, Reasons
from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.solver.lp.ungroup import spread
from hocket.scheduler.solver.lp.variables import AllocationVariables

_PRICE = 1e-9
_SAME = 1e-9  # relative tolerance
ENOUGH = Reason("it has its required share", "a policy that requires more")  # neither time nor workers are binding


def answer(
    shares: AllocationVariables, times: np.ndarray, duals: np.ndarray, objective: float, gap: float
) -> Allocation:
    """Allocation from the times of groups.

    Arguments:
        times: values of the variables; further values are ignored.
        duals: duals of the limit rows; further values are ignored.
        objective, gap: see Allocation.
    """
    entries = spread(shares.group, shares.first, shares.second, shares.column, times[: shares.variables])
    told = reasons(shares, duals, times[: shares.variables])
    return Allocation(*entries, objective, gap, told, shares.refused, grouped=(shares, times[: shares.variables]))


def reasons(shares: AllocationVariables, duals: np.ndarray, times: np.ndarray | None = None) -> Reasons:
    """Binding constraint of each job.

    Arguments:
        duals: duals of the limit rows; further values are ignored.
        times: values of the variables, if they are all the time that groups get.
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
    """Groups that run all the time, and groups at their maximum throughput."""
    groups, variables, steps = shares.throughput
    does = np.bincount(groups, steps * times[variables], shares.groups)
    most = np.zeros(shares.groups)
    np.maximum.at(most, groups, steps * shares.count[groups])
    total = np.bincount(groups, times[variables], shares.groups)
    return total >= shares.count * (1 - _SAME), does >= most * (1 - _SAME)


def _reason(code: int, types: tuple[WorkerType, ...]) -> Reason:
    """Reason of a group that runs all the time (-1) or is limited by full types.

    Arguments:
        code: -1, or a bit mask of the full types.
    """
    if code < 0:
        return Reason("it runs all the time", "faster workers, or more of the fastest that it has")
    crowded = [own.name for k, own in enumerate(types) if code >> k & 1]
    if not crowded:
        return ENOUGH
    names = " and ".join(crowded)
    return Reason(f"{names} {'is' if len(crowded) == 1 else 'are'} full", f"more workers of {names}")
