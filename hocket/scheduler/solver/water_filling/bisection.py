"""Water-level search: raise all levels until workers are the limit.

Jobs that run all the time on their fastest workers saturate without limiting other jobs. Hundreds of such jobs would
need as many water-filling rounds (rounds.py). Instead, trajectory.py gives the demand of each job as a function of the
rise, and the largest feasible rise is searched. The duals of the unmet demand at one rise bound the unmet demand at
every other rise; the next rise is where this bound is 0. The search converges from above in a few steps.
Source: as root_search.py, but from above.
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
_LACKING = 1e-11  # unmet demand that counts as 0, as a fraction of a group's maximum throughput
_WITHIN = 4 * TOLERANCE  # the same, after the first search
_CLOSE = 1e-13  # relative tolerance of equal rises
_NEAR = 1e-9  # relative tolerance of bounds from known duals


class Leap:
    """Search for the largest feasible rise; each call starts from the last solution."""

    def __init__(self, shares: AllocationVariables, due: np.ndarray, place: str, session: Session | None) -> None:
        """
        Arguments:
            shares: groups without pairs.
            due: steps per second of a job at level 1, by group.
            place: name of the program in error messages.
            session: stored warm starts; None for no session.
        """
        self._lines, self._due = GroupLines(shares), due
        cuts = self._lines.start(np.zeros(len(shares.group)))
        self._served = Served(cuts, np.zeros(shares.variables), place, 1.0, session)

    @property
    def start(self) -> Stand | None:
        """Duals of the worker types (worker prices) at the end of the last search; None if it used none."""
        return self._served.start

    def rise(self, path: Path) -> tuple[float, np.ndarray, Basis | None]:
        """Find the largest feasible rise.

        Arguments:
            path: levels of the groups as a function of the rise.

        Returns:
            The rise; values of the variables; basis for a program with the same rows, None if unknown.

        Raises:
            SolverTrouble: the search does not converge, or the solver failed.
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
        # The levels of earlier searches are reached only within the solver's tolerance.
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
        raise SolverTrouble(f"{served.place}: no solution after {_STEPS} steps")

    def _demand(self, path: Path, rise: float) -> np.ndarray:
        """Demand of each job, in steps per second, at the level that its group has after a rise of the water.

        Arguments:
            path: level of each group as a function of the rise.
            rise: increase of the water height, from the current levels.

        Returns:
            Demands of shape (jobs,); 0 for a job that cannot run.
        """
        return np.append(path.at(rise) * self._due, 0.0)[self._lines.shares.group]

    def _by_prices(self, path: Path, now: float) -> float:
        """Upper bound of the rise, from duals of the worker types; at most the known bound `now`."""
        shares = self._lines.shares

        def wanted() -> np.ndarray:
            return path.at(now) * self._due * shares.count

        for cost, worth in looks(shares, wanted):
            now = _root(path, cost * self._due * shares.count, -worth, now)
        return now

    def _below(self, path: Path, duals: np.ndarray, bound: float, now: float) -> float:
        """Largest rise, up to `now`, at which these duals do not prove unmet demand.

        Arguments:
            duals: duals of all rows.
            bound: lower bound of the unmet demand at the rise `now`, from these duals.
            now: current rise.
        """
        shares = self._lines.shares
        prices = np.maximum(duals[len(shares.limits.lower) :], 0.0) * self._due / self._lines.fastest
        return _root(path, prices, bound - float(prices @ path.at(now)), now)


def _root(path: Path, prices: np.ndarray, rest: float, now: float) -> float:
    """Largest rise, up to `now`, with rest + prices @ levels <= 0, by bisection.

    Levels do not decrease with the rise.
    """
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
