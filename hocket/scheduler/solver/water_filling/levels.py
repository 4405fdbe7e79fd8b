"""Water filling: raise the levels of job groups until every group is saturated.

The level of a group is the throughput of one of its jobs, relative to a unit: the job's throughput with an equal share
of all workers, in the water_filling policy times weight / scale factor. A rise is an increase of all unsaturated
levels in proportion to their rates.
"""

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

_SAME = 1e-9  # relative tolerance of the maximum level
_RISEN = 1e-6  # smaller rises do not count: they come from the slack of the level rows
MANY = 64  # minimum number of groups; below, rounds are faster than a search
_AGAIN = 4  # rounds without a limit by workers, after which a search (bisection.py) pays off
_DECIMALS = 6  # decimals to which equal rises agree
_NONE = 1e-12  # smaller prices of time and workers count as 0


@dataclass(eq=False)
class Water:
    """State of water filling.

    Attributes:
        level: level of each group.
        stuck: mask of the saturated groups.
        step: number of rises after which each group saturated.
        full: mask of the worker types that were full when the group saturated; shape (groups, types).
        busy: True if the group saturated because it runs all the time; shape (groups,).
        times: values of the variables.
        rises: number of rises so far.
        first: size of the first rise.
        gap: largest duality gap of any round.
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
    """State before the first rise: all levels are 0."""
    count, types = shares.groups, len(shares.snapshot.types)
    none = np.zeros(count, dtype=bool)
    steps, full = np.zeros(count, dtype=np.int64), np.zeros((count, types), dtype=bool)
    return Water(np.zeros(count), none, steps, full, none.copy(), np.zeros(shares.variables))


def moved(water: Water, before: AllocationVariables, shares: AllocationVariables) -> Water:
    """Transfer the state to other groups of the same jobs.

    The jobs of each new group must have equal levels.

    Arguments:
        before, shares: previous and new groups.
    """
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
    """Raise the levels until all groups are saturated, or until `rates` stops it.

    Arguments:
        levels: linear program of a round.
        water: state, updated in place.
        rates: function from the mask of saturated groups to the rate of each level, 0 for groups that wait; it returns
            None to stop.
        leap: search that skips rounds in which groups only saturate by running all the time; None for rounds only.
        path: function from the state to the trajectory for `leap`; it returns None if rounds are to be used.

    Raises:
        SolverTrouble: a round saturates no group, or the solver failed.
    """
    shares = levels.shares
    price_of_types = slice(shares.groups, shares.groups + len(shares.snapshot.types))
    alone = _AGAIN  # rounds since the last search in which all newly saturated groups ran all the time
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
            raise SolverTrouble(f"{levels.place}: a round without a newly saturated group")


def _leap(levels: Levels, water: Water, path: Path, leap: Leap) -> None:
    """Rise along a trajectory until workers are the limit.

    Groups that run all the time before this point are saturated.
    """
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
    """Steps per second of a job of each group with its equal share of all workers."""
    return equal_share(shares.snapshot)[shares.member]


def told(shares: AllocationVariables, water: Water) -> Allocation:
    """Allocation of the final state; a job's reason has its level and binding limit."""
    found = answer(shares, water.times, np.zeros(shares.groups + len(shares.snapshot.types)), water.first, water.gap)
    return replace(found, reasons=Reasons(len(shares.group), lambda: _reasons(shares, water, found.reasons)))


def _reasons(shares: AllocationVariables, water: Water, plain: Sequence[Reason]) -> list[Reason]:
    """Reason for each job.

    Arguments:
        plain: reasons of all jobs, of which those of jobs that cannot run are used.
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
    """Reason of a saturated group.

    Arguments:
        where: description of its level.
        full: names of the full types that it uses; empty if it runs all the time.
    """
    if not full:
        return Reason(f"{where}: it runs all the time", "faster workers, or more of the fastest that it has")
    return Reason(f"{where}: {full} {'are' if ' and ' in full else 'is'} full", f"more workers of {full}")
