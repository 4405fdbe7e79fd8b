"""Leap: how far water rises before workers hold somebody, past all that merely run all the time.

A job that runs all the time where it is fastest is stuck, and nobody else is for that. Where hundreds of jobs end so, one after
the other, there would be as many rounds. Instead jobs ask for what they have at some rise of the water (trajectory.py), and the
greatest rise is sought at which all can have that. The prices of what lacks at one rise bound it at every other: the next is
where they show nothing. So it falls to the answer in a few steps, from above.
Source: as root_search.py, from the other side.
"""

import numpy as np

from hocket.scheduler.solver.dual.separable_program import Stand
from hocket.scheduler.solver.lp.linear_program import TOLERANCE, Basis, SolverTrouble
from hocket.scheduler.solver.lp.session import Session
from hocket.scheduler.solver.lp.variables import AllocationVariables
from hocket.scheduler.solver.parametric.demand_groups import GroupLines
from hocket.scheduler.solver.parametric.infeasibility_prices import looks
from hocket.scheduler.solver.parametric.min_cost_demand import Served, without_slack
from hocket.scheduler.solver.water_filling.trajectory import Path

_STEPS = 100
_LACKING = 1e-11  # of what a group could do in all
_WITHIN = 4 * TOLERANCE
_CLOSE = 1e-13
_NEAR = 1e-9  # of a rise: what is known shows no more


class Leap:
    """Leaps of one kind of water, each from where the last one ended."""

    def __init__(self, shares: AllocationVariables, due: np.ndarray, place: str, session: Session | None) -> None:
        """
        Arguments:
            shares: without pairs. due: steps a second, by group, in which levels count.
        """
        self._lines, self._due = GroupLines(shares), due
        cuts = self._lines.start(np.zeros(len(shares.group)))
        self._served = Served(cuts, np.zeros(shares.variables), place, 1.0, session)

    @property
    def start(self) -> Stand | None:
        """Prices where the last one ended, if these are what it is known by."""
        return self._served.start

    def rise(self, path: Path) -> tuple[float, np.ndarray, Basis | None]:
        """How far it goes, times of variables there, and a basis for the same rows.

        Raises:
            SolverTrouble: the solver gave up.
        """
        served = self._served
        now = float(path.ends[np.isfinite(path.ends)].max())
        before = None if served.solution is None else served.solution.duals
        if before is None:
            now = self._by_prices(path, now)
            before = served.known(self._demand(path, now))
        while before is not None:
            below = self._below(path, before, served.bound(before, self._demand(path, now)), now)
            if below >= now * (1 - _NEAR):
                break
            now = below
            before = served.known(self._demand(path, now))
        # What was reached before is reached within the solver's tolerance.
        lacking = _LACKING if served.solution is None else _WITHIN
        for _ in range(_STEPS):
            found = served.ask(self._demand(path, now))
            if found.objective <= lacking:
                served.keep()
                return now, found.x[: self._lines.shares.variables], without_slack(found)
            below = self._below(path, found.duals, found.bound, now)
            if below >= now * (1 - 4 * _CLOSE):
                served.keep()
                return below, found.x[: self._lines.shares.variables], without_slack(found)
            now = below
        raise SolverTrouble(f"{served.place}: {_STEPS} steps were not enough")

    def _demand(self, path: Path, rise: float) -> np.ndarray:
        """Steps a second of each job, 0 for those that can run nowhere."""
        return np.append(path.at(rise) * self._due, 0.0)[self._lines.shares.group]

    def _by_prices(self, path: Path, now: float) -> float:
        """A rise above which there is none, by prices of workers."""
        shares = self._lines.shares

        def wanted() -> np.ndarray:
            return path.at(now) * self._due * shares.count

        for cost, worth in looks(shares, wanted):
            now = _root(path, cost * self._due * shares.count, -worth, now)
        return now

    def _below(self, path: Path, duals: np.ndarray, bound: float, now: float) -> float:
        """The greatest rise at which these duals show nothing that lacks.

        Arguments:
            duals: of all rows. bound: what lacks now, by them.
        """
        shares = self._lines.shares
        prices = np.maximum(duals[len(shares.limits.lower) :], 0.0) * self._due / self._lines.fastest
        return _root(path, prices, bound - float(prices @ path.at(now)), now)


def _root(path: Path, prices: np.ndarray, rest: float, now: float) -> float:
    """The greatest rise up to now at which rest + prices * levels is not above 0; levels do not fall as the water rises."""
    if rest + float(prices @ path.at(now)) <= 0:
        return now
    low, high = 0.0, now
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        if rest + float(prices @ path.at(middle)) <= 0:
            low = middle
        else:
            high = middle
    return low
