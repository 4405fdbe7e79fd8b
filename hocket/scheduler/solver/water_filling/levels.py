"""Water: levels of throughput that rise until everybody is stuck, and the allocation that then stands."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hocket.scheduler.model.allocation import Allocation, Reason, Reasons
from hocket.scheduler.policies.max_min_fairness import equal_share
from hocket.scheduler.solver.lp.linear_program import SolverTrouble
from hocket.scheduler.solver.lp.to_allocation import answer
from hocket.scheduler.solver.lp.variables import AllocationVariables
from hocket.scheduler.solver.water_filling.bisection import Leap
from hocket.scheduler.solver.water_filling.rounds import PRICE, Levels
from hocket.scheduler.solver.water_filling.trajectory import Path

_SAME = 1e-9  # of levels: where a job can get no more
_RISEN = 1e-6  # of levels: what is less is the slack of floors
MANY = 64  # groups: of fewer it is quicker to let each end by itself
_AGAIN = 4  # rounds in which nobody is held by workers, after which a leap is worth it
_DECIMALS = 6  # to which rises are one
_NONE = 1e-12  # of prices of time and workers


@dataclass(eq=False)
class Water:
    """How far the levels have risen.

    Attributes:
        level: what a job of each group gets; stuck: who gets no more; step: by group, after how many rises it was.
        full, busy: by group: types that were full, and whether its time was, when it was; shapes (groups, types), (groups,).
        times: of the variables. rises: that were. first: how far the first went. gap: the largest.
    """

    level: np.ndarray
    stuck: np.ndarray
    step: np.ndarray
    full: np.ndarray
    busy: np.ndarray
    times: np.ndarray
    rises: int = 0
    first: float = 0.0
    gap: float = 0.0


def still(shares: AllocationVariables) -> Water:
    """Water before the first rise."""
    count, types = shares.groups, len(shares.snapshot.types)
    none = np.zeros(count, dtype=bool)
    steps, full = np.zeros(count, dtype=np.int64), np.zeros((count, types), dtype=bool)
    return Water(np.zeros(count), none, steps, full, none.copy(), np.zeros(shares.variables))


def moved(water: Water, before: AllocationVariables, shares: AllocationVariables) -> Water:
    """The same water, among groups that are made anew; jobs of one group have the same level."""
    runs = shares.group >= 0
    level = np.bincount(shares.group[runs], water.level[before.group[runs]], shares.groups) / shares.count
    was = before.group[shares.member]
    state = level, water.stuck[was], water.step[was], water.full[was], water.busy[was]
    return Water(*state, np.zeros(shares.variables), water.rises, water.first, water.gap)


def fill(
    levels: Levels,
    water: Water,
    rates: Callable[[np.ndarray], np.ndarray | None],
    leap: Leap | None = None,
    path: Callable[[Water], Path | None] | None = None,
) -> None:
    """Raise the water until all are stuck, or nobody is to rise.

    Arguments:
        rates: from who is stuck to everybody's rates, 0 for those who wait; None to stop.
        leap: to pass those that end by themselves. path: on which it is to go; None where it cannot.
    """
    shares = levels.shares
    price_of_types = slice(shares.groups, shares.groups + len(shares.snapshot.types))
    alone = _AGAIN  # rounds since the last leap in which all that got stuck ran all the time
    while not water.stuck.all():
        if leap is not None and path is not None and alone >= _AGAIN and (~water.stuck).sum() > MANY:
            ahead, alone = path(water), 0
            if ahead is not None:
                _leap(levels, water, ahead, leap)
            if water.stuck.all():
                return
        rate = rates(water.stuck)
        if rate is None:
            return
        found = levels.round(rate, water.level)
        water.times, water.gap = found.times, max(water.gap, found.gap)
        if water.rises == 0:
            water.first = found.rise
        risen = rate * found.rise
        water.rises += int(risen.max() > _RISEN)
        water.level = water.level + risen
        ends = levels.reach - water.level <= _SAME * levels.reach
        priced = found.duals[-shares.groups :] * rate > PRICE
        stuck = (rate > 0) & (priced | ends)
        waits = (rate == 0) & ~water.stuck
        if waits.any():
            stuck |= waits & levels.blocked(found.duals)
        fresh = stuck & ~water.stuck
        water.stuck = water.stuck | stuck
        alone += int(not priced[fresh].any())
        water.step[fresh] = water.rises
        water.full[fresh] = found.duals[price_of_types] < -_NONE
        water.busy[fresh] = ((found.duals[: shares.groups] < -_NONE) | ends)[fresh]
        if not fresh.any():
            raise SolverTrouble(f"{levels.place}: a round that fixes nobody")


def _leap(levels: Levels, water: Water, path: Path, leap: Leap) -> None:
    """To where workers hold somebody; those that run all the time before are stuck."""
    rise, water.times, basis = leap.rise(path)
    levels.begin(basis, leap.start)
    rising = np.isfinite(path.ends)
    if water.rises == 0:
        water.first = min(rise, float(path.ends[rising].min()))
    risen = path.at(rise)
    ended = rising & (levels.reach - risen <= _SAME * levels.reach)
    marks, which = np.unique(np.round(path.ends[ended] / max(rise, _NONE), _DECIMALS), return_inverse=True)
    water.step[ended] = water.rises + 1 + which
    water.rises += max(len(marks) + int(not ended[rising].all()), 1)
    water.level = np.where(ended, levels.reach, risen)
    water.stuck, water.busy = water.stuck | ended, water.busy | ended


def dues(shares: AllocationVariables) -> np.ndarray:
    """Steps a second of a job of each group with an equal share of time on every worker."""
    return equal_share(shares.snapshot)[shares.member]


def told(shares: AllocationVariables, water: Water) -> Allocation:
    """The allocation, with the level at which each job got stuck and what held it."""
    found = answer(shares, water.times, np.zeros(shares.groups + len(shares.snapshot.types)), water.first, water.gap)
    return replace(found, reasons=Reasons(len(shares.group), lambda: _reasons(shares, water, found.reasons)))


def _reasons(shares: AllocationVariables, water: Water, plain: Sequence[Reason]) -> list[Reason]:
    """Of all jobs.

    Arguments:
        plain: where those that can run nowhere find theirs.
    """
    types, kind = shares.snapshot.types, shares.snapshot.type_of[shares.column]
    runs = np.zeros(water.full.shape, dtype=bool)
    runs[shares.first, kind] = True
    crowded = np.where(water.busy, 0, (runs & water.full) @ (1 << np.arange(len(types))))
    by_code = {
        code: " and ".join(own.name for k, own in enumerate(types) if code >> k & 1) for code in set(crowded.tolist())
    }
    steps = zip(water.step.tolist(), water.level.tolist(), crowded.tolist(), strict=True)
    texts = [
        _reason(f"level {k} of {water.rises}, {level:.3g} of its equal share", by_code[code])
        for k, level, code in steps
    ]
    return [texts[g] if g >= 0 else plain[j] for j, g in enumerate(shares.group.tolist())]


def _reason(where: str, full: str) -> Reason:
    """Of a group at some level that is held by types that are full, or by none: then it runs all the time."""
    if not full:
        return Reason(f"{where}: it runs all the time", "faster workers, or more of the fastest that it has")
    return Reason(f"{where}: {full} {'are' if ' and ' in full else 'is'} full", f"more workers of {full}")
