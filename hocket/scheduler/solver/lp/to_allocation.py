"""Answers: from a solved program to an allocation, with what holds every job back.

A type whose row has a price is full: more of its workers would help somebody. A group whose time has a price works all the
time: only faster workers would help it. So does one that is always where it is fastest, though the price may be elsewhere, as
time is bounded by variables as well.
"""

import numpy as np

from hocket.scheduler.model.allocation import ALONE, Allocation, Reason, Reasons
from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.solver.lp.ungroup import spread
from hocket.scheduler.solver.lp.variables import AllocationVariables

_PRICE = 1e-9
_SAME = 1e-9  # relative
ENOUGH = Reason(
    "it has what the policy asks for it", "a policy that asks for more"
)  # neither time nor workers hold it back


def answer(
    shares: AllocationVariables, times: np.ndarray, duals: np.ndarray, objective: float, gap: float
) -> Allocation:
    """The allocation of groups' times.

    Arguments:
        times: of the variables, more may follow. duals: of the limits' rows, more may follow.
        objective, gap: as an allocation has them.
    """
    entries = spread(shares.group, shares.first, shares.second, shares.column, times[: shares.variables])
    told = reasons(shares, duals, times[: shares.variables])
    return Allocation(*entries, objective, gap, told, shares.refused, grouped=(shares, times[: shares.variables]))


def reasons(shares: AllocationVariables, duals: np.ndarray, times: np.ndarray | None = None) -> Reasons:
    """What holds every job back.

    Arguments:
        duals: of the limits' rows; more may follow. times: of the variables, if they are all that groups have.
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
    """Which groups run all the time, and which do as much as always where they are fastest."""
    groups, variables, steps = shares.throughput
    does = np.bincount(groups, steps * times[variables], shares.groups)
    most = np.zeros(shares.groups)
    np.maximum.at(most, groups, steps * shares.count[groups])
    total = np.bincount(groups, times[variables], shares.groups)
    return total >= shares.count * (1 - _SAME), does >= most * (1 - _SAME)


def _reason(code: int, types: tuple[WorkerType, ...]) -> Reason:
    """Of a group that is at work all the time (-1), or that runs on the full types whose bits are in the code."""
    if code < 0:
        return Reason("it runs all the time", "faster workers, or more of the fastest that it has")
    crowded = [own.name for k, own in enumerate(types) if code >> k & 1]
    if not crowded:
        return ENOUGH
    names = " and ".join(crowded)
    return Reason(f"{names} {'is' if len(crowded) == 1 else 'are'} full", f"more workers of {names}")
