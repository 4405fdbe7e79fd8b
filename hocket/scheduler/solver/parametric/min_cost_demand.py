"""Minimum cost at which the demands of all jobs are met, solved again for one set of demands after another.

A job's demand is the throughput that it needs, in steps per second. A linear program chooses the jobs' times on
workers. Its demand rows (demand_groups.py) are added as needed, as cutting planes. Worker prices are the duals of the
worker types: no prices in dollars. Programs with hundreds of groups and one demand row each are solved by dual
decomposition instead, i.e. by a search for worker prices (large_programs.py).
Source: as demand_groups.py.
"""

from dataclasses import dataclass, replace

import numpy as np

from hocket.scheduler.solver.dual import large_programs as unlike
from hocket.scheduler.solver.dual.separable_program import Stand
from hocket.scheduler.solver.lp import session as sessions
from hocket.scheduler.solver.lp.linear_program import Basis, LinearProgram, Solution, SolverTrouble, solve
from hocket.scheduler.solver.lp.session import Session
from hocket.scheduler.solver.parametric.demand_groups import MISSING, LineCuts

_ROUNDS = 200
_DEAR = 8.0  # price factor per group, see `scarce`
_BASIC = 1  # basis state of a row or variable between its bounds


@dataclass(frozen=True, eq=False)
class PriorSolution:
    """Warm start: final basis or worker prices of a program with the same rows.

    Attributes:
        basis: final basis; None if unknown.
        prices: final worker prices; None if the program was not solved by dual decomposition.
    """

    basis: Basis | None = None
    prices: Stand | None = None


class Served:
    """Solver of one linear program, called again for each set of demands.

    It minimizes the cost at which all demands are met, or the unmet demand.

    Attributes:
        cuts: demand rows so far; each solve may add violated rows.
        place: name of the linear program in error messages.
        solution: solution of the last solve; None before the first.
    """

    def __init__(
        self,
        cuts: LineCuts,
        cost: np.ndarray,
        place: str,
        most: float | None = None,
        session: Session | None = None,
        prior: PriorSolution = PriorSolution(),
    ) -> None:
        """
        Arguments:
            cuts: initial demand rows.
            cost: cost of each variable.
            place: name of the linear program in error messages.
            most: upper bound of unmet demand; None to require all demand. If given, the variables cost nothing, and
                the unmet demand is the last variable and the objective.
            session: stored warm starts; None for no session.
            prior: warm start if the session has none.
        """
        self.cuts, self.place = cuts, place
        self.solution: Solution | None = None
        self._cost = cost if most is None else np.append(np.zeros_like(cost), 1.0)
        self._extra = () if most is None else ((0.0, most),)
        self._most = most or 0.0
        self._slack = None if most is None else cuts.lines.shares.variables
        self._name = place if most is None else lacking(place)
        worth = cuts.entries >= sessions.WORTH
        self._session, self._basis = session if worth else None, prior.basis
        self._program: LinearProgram | None = None
        self._looked = False  # True once the session was asked for a start
        self._start = prior.prices
        lines = cuts.lines
        one_each = len(cuts.group) == lines.shares.groups and not cuts.rate.any()
        self._unlike = one_each and unlike.many(lines.shares)
        if self._unlike and session is not None:
            self._start = session.prices(lines.shares.snapshot, self._name) or prior.prices
        # With only a basis, one program is faster to solve than prices are to find.
        self._in_one = not self._unlike or (self._start is None and prior.basis is not None)

    @property
    def prices(self) -> np.ndarray:
        """Prices (duals, >= 0) of the demand rows in the last solution."""
        assert self.solution is not None
        limits = len(self.cuts.lines.shares.limits.lower)
        return np.maximum(self.solution.duals[limits : limits + len(self.cuts.group)], 0.0)

    def known(self, demand: np.ndarray) -> np.ndarray | None:
        """Row duals from the warm start (basis or worker prices); None if unknown."""
        if self._unlike and self._start is not None:
            cost = None if self._slack is not None else self._cost
            return unlike.shown(self.cuts.lines.shares, self._rows(demand)[0], self._start.prices, cost)
        self._looked = True
        if self._session is None:
            return None
        shares = self.cuts.lines.shares
        rows, columns = len(shares.limits.lower) + len(self.cuts.group), len(self._cost)
        start = self._session.start(shares, rows, columns, self._name, self.cuts.labels)
        if start is None:
            return None
        self._basis = start.basis
        return start.duals

    def bound(self, duals: np.ndarray, demand: np.ndarray) -> float:
        """Lower bound of the objective at these demands, from any row duals."""
        return self._at(demand).bound(duals)

    def ask(self, demand: np.ndarray) -> Solution:
        """Solve for the given demands, in steps per second.

        Raises:
            Infeasible: the demands cannot be met, and unmet demand is not allowed.
            SolverTrouble: the solver failed.
        """
        shares = self.cuts.lines.shares
        found = None if self._in_one else self._by_prices(demand)
        if found is not None:
            self.solution = found
            return found
        for _ in range(_ROUNDS):
            again = self._program is not None
            program = self._at(demand)
            if again and self.solution is not None:
                found = solve(program, self.place, after=self.solution)
            else:
                if not self._looked:
                    self.known(demand)
                found = solve(program, self.place, self._basis)
            self.solution = found
            if found.x[shares.variables :].sum() > MISSING:
                return found  # demand is unmet already, so further missing rows do not matter
            group, rate = self.cuts.lines.missing(found.x, demand)
            known = set(zip(self.cuts.group.tolist(), self.cuts.rate.tolist(), strict=True)) if len(group) else set()
            new = [k for k, pair in enumerate(zip(group.tolist(), rate.tolist(), strict=True)) if pair not in known]
            if not new:
                return found
            self.cuts = self.cuts.with_more(group[new], rate[new])
            self._basis, self._program, self.solution = extended(found.basis, len(new)), None, None
        raise SolverTrouble(f"{self.place}: rows are missing after {_ROUNDS} rounds")

    def _by_prices(self, demand: np.ndarray) -> Solution | None:
        """Solve by dual decomposition, for many groups; None if it fails."""
        shares = self.cuts.lines.shares
        rows, level = self._rows(demand)
        cost = self._cost if level is None else None
        answer = unlike.solve(shares, rows, self.place, cost, level, self._start)
        if answer is None:
            return None
        found, self._start = answer
        return found if level is None else _not_below(found)

    def _rows(self, demand: np.ndarray) -> tuple[unlike.GroupRows, tuple[float, float] | None]:
        """One demand row per group, and lower and upper bound of the unmet demand.

        The bounds are None if all demand is required. A negative unmet demand is allowed, because its worker prices
        are a start for the next call.
        """
        lines = self.cuts.lines
        lacks = self._slack is not None
        slope = np.full(lines.shares.groups, -1.0 if lacks else 0.0)
        rows = unlike.GroupRows(lines.fastest, self.cuts.asked(demand), slope)
        return rows, (-1.0, self._most) if lacks else None

    @property
    def start(self) -> Stand | None:
        """Worker prices from which the next call starts; None if unknown."""
        return self._start

    def scarce(self) -> Stand | None:
        """Initial worker prices for the minimum-cost program of the same demands.

        The demands are almost infeasible, so workers are expensive. None if no prices are known.
        """
        if self._start is None:
            return None
        return Stand(self._start.prices * (_DEAR * self.cuts.lines.shares.groups), 0.0)

    def keep(self) -> None:
        """Store the final basis or worker prices in the session, if there is one."""
        shares = self.cuts.lines.shares
        if self._unlike and self._in_one and self.solution is not None:
            of_types = self.solution.duals[shares.groups : len(shares.limits.lower)]
            self._start = Stand(np.maximum(-of_types, 0.0), 0.0)
        if self._session is not None and self._unlike and self._start is not None:
            self._session.keep_prices(shares.snapshot, self._name, self._start)
        elif self._session is not None and self.solution is not None:
            self._session.keep(shares, self.solution, self._name, self.cuts.labels)

    def _at(self, demand: np.ndarray) -> LinearProgram:
        """Linear program for these demands; with the same rows, only row bounds change."""
        shares = self.cuts.lines.shares
        if self._program is None:
            self._program = shares.program(self._cost, self.cuts.rows(demand, self._slack), extra=self._extra)
        else:
            lower = np.concatenate([shares.limits.lower, self.cuts.asked(demand)])
            self._program = replace(self._program, row_lower=lower)
        return self._program


def _not_below(found: Solution) -> Solution:
    """Solution with unmet demand clipped at 0."""
    least = max(found.objective, 0.0)
    return replace(found, x=np.append(found.x[:-1], least), objective=least, bound=max(found.bound, 0.0))


def lacking(place: str) -> str:
    """Name, in the session, of the linear program that minimizes the unmet demand of the program `place`."""
    return f"{place}, what lacks"


def extended(basis: Basis | None, rows: int) -> Basis | None:
    """Basis for a program with `rows` more rows at the end; None if unknown."""
    if basis is None:
        return None
    return basis[0], np.append(basis[1], np.full(rows, _BASIC, dtype=basis[1].dtype))


def without_slack(found: Solution) -> Basis | None:
    """Basis of a solution with unmet demand, for the program without this variable.

    If the variable of unmet demand is basic, a nonbasic row becomes basic instead. None if unknown.
    """
    basis = found.basis
    if basis is None:
        return None
    rows = basis[1].copy()
    if basis[0][-1] == _BASIC:
        tight = np.flatnonzero(rows != _BASIC)
        if not len(tight):
            return None
        rows[tight[-1]] = _BASIC
    return basis[0][:-1], rows
