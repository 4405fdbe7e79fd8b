"""Water-filling rounds: all levels rise at their rates until a group is saturated.

In each round, a linear program gives the largest common rise of all unsaturated groups. A price is a dual or a reduced
cost. A group with a price on its level row is saturated: no optimal solution gives it more, so more for it means less
for another group. A group is also saturated if it runs all the time on its fastest workers, or if it waits (rate 0)
and each of its variables has a price. In degenerate solutions some saturated groups have no price; the next round then
has a rise of 0 and finds them. No mixed-integer program is needed: each round saturates at least one group, and there
are as many rounds with a rise as levels.

One solver is kept for all rounds; only bounds and rates change in between. Variables of job pairs enter the solver
when their reduced costs show a gain. Each solution is verified against the program with all pairs.
Source: Narayanan's dissertation, section 5.4.3 (which finds bottlenecks with binary variables); complementary
slackness.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hocket.scheduler.model.allocation import ALONE
from hocket.scheduler.solver.dual import large_programs as unlike
from hocket.scheduler.solver.dual.separable_program import Stand
from hocket.scheduler.solver.lp.column_matrix import Matrix
from hocket.scheduler.solver.lp.linear_program import TOLERANCE, Basis, Infeasible, LinearProgram, SolverTrouble
from hocket.scheduler.solver.lp.solver_pool import begin, left, states, taken
from hocket.scheduler.solver.lp.variables import AllocationVariables
from hocket.scheduler.solver.lp.warm_start import inherited

PRICE = 1e-7  # smaller prices count as 0; level prices times rates sum to 1 in each round
_SLACK = 2 * TOLERANCE  # relaxation of level rows, so that levels reached within tolerance stay feasible
_MOST_SLACK = 1e-7
_AT_LOWER, _BASIC = 0, 1  # states in a basis
_RISE, _SHORT, _OWN = 0, 1, 2  # the solver's first two columns, rise and shortfall, and their number
_ENTRANTS = 4  # most pairs that enter at a time, per group


@dataclass(frozen=True, eq=False)
class Round:
    """Result of one round.

    Attributes:
        rise: largest common rise.
        times: values of all variables.
        duals: duals of the rows: time of each group, workers of each type, level of each group.
        gap: verified gap of the rise, relative to max(1, rise).
    """

    rise: float
    times: np.ndarray
    duals: np.ndarray
    gap: float


class Levels:
    """Linear program of a water-filling round, kept between rounds.

    maximize the rise c subject to level[g] + rate[g] c <= throughput of a job of group g, in units of `due`

    Attributes:
        shares: groups and their variables.
        place: name of the program in error messages.
        reach: maximum level of each group.
    """

    def __init__(
        self, shares: AllocationVariables, due: np.ndarray, place: str, before: "Levels | None" = None
    ) -> None:
        """
        Arguments:
            due: steps per second of a job at level 1, by group.
            place: name of the program in error messages.
            before: program of the same jobs in other groups; the first solve starts from its last basis. Its solver
                is returned to the pool.
        """
        self.shares, self.place = shares, place
        count, limits = shares.groups, shares.limits
        self._first_level = len(limits.lower)
        groups, variables, steps = shares.throughput
        self.reach = np.zeros(count)
        np.maximum.at(self.reach, groups, steps * shares.count[groups] / due[groups])
        levels = self._first_level + np.arange(count)
        self._cost = np.append(np.zeros(shares.variables), -1.0)
        self._upper = np.append(shares.count[shares.first], 0.0)
        self._rows = np.concatenate([limits.rows, self._first_level + groups, levels])
        self._columns = np.concatenate([limits.columns, variables, np.full(count, shares.variables)])
        self._values = np.concatenate([limits.values, steps / due[groups], np.zeros(count)])
        self._row_lower = np.concatenate([limits.lower, np.zeros(count)])
        self._row_upper = np.concatenate([limits.upper, np.full(count, np.inf)])
        self._told_lower, self._rates = self._row_lower, np.zeros(count)
        kept = self._columns < shares.variables
        entries = self._rows[kept], self._columns[kept], self._values[kept]
        self._matrix = Matrix(*entries, shares.variables)
        self._inside = np.flatnonzero(shares.second == ALONE)
        self._slack = _SLACK
        self._own_cost, self._most_short = np.array([-1.0, 0.0]), 0.0
        self._solver: Any = None
        self._careful = False
        self._begin: Basis | None = None
        self._start: Stand | None = None
        self._due = due
        if before is not None and before._solver is not None:
            self._inside, *found = inherited(shares, before.shares, before._inside, states(before._solver), _OWN)
            self._begin = found[0], found[1]
            before.close()

    def begin(self, basis: Basis | None, start: Stand | None = None) -> None:
        """Set the warm start of the next round.

        Arguments:
            basis: basis states of variables and rows; ignored after the first round, and if there are pairs.
            start: worker prices; if given, the next round is first tried by dual decomposition from these prices.
        """
        self._start = start
        if basis is None or self._solver is not None or len(self._inside) < self.shares.variables:
            return
        own = np.full(_OWN, _AT_LOWER, dtype=np.int8)
        self._begin = np.concatenate([own, basis[0]]), basis[1]

    def round(self, rates: np.ndarray, levels: np.ndarray) -> Round:
        """Compute the largest common rise.

        Arguments:
            rates: increase of each group's level per unit of rise; 0 for groups that keep their level.
            levels: current level of each group.

        Raises:
            Infeasible: the current levels are infeasible.
            SolverTrouble: the solver failed.
        """
        rising = rates > 0
        most = 1 + 2 * float(((self.reach - levels)[rising] / rates[rising]).clip(min=0).min())
        self._upper[-1] = most
        self._row_lower[self._first_level :] = levels - self._slack
        if self._start is not None:
            quick = self._by_prices(rates)
            if quick is not None:
                return quick
        self._change(rates)
        if not self._solve():
            self._make_room()
            if not self._solve():
                raise Infeasible(f"{self.place}: the constraints are infeasible")
        answer = self._solver.getSolution()
        found, duals = np.array(answer.col_value), np.array(answer.row_dual)
        times = np.zeros(self.shares.variables)
        times[self._inside] = found[_OWN:]
        rise = float(found[_RISE])
        gap = abs(rise + self._program().bound(duals)) / max(1.0, rise)
        return Round(max(0.0, rise), times, duals, gap)

    def _by_prices(self, rates: np.ndarray) -> Round | None:
        """Solve the round by dual decomposition from the stored prices; None if it fails.

        The next round starts from the final basis.
        """
        start, self._start = self._start, None
        rows = unlike.GroupRows(self._due, self._row_lower[self._first_level :], -rates)
        answer = unlike.solve(self.shares, rows, self.place, None, (-float(self._upper[-1]), 0.0), start)
        if answer is None:
            return None
        found = answer[0]
        if self._solver is None and found.known is not None:
            columns, states = found.known
            self._begin = np.concatenate([[_BASIC, _AT_LOWER], columns[:-1]]).astype(np.int8), states
        self._values[-len(rates) :] = -rates
        rise = -float(found.x[-1])
        return Round(
            max(0.0, rise), found.x[:-1], found.duals, abs(rise + self._program().bound(found.duals)) / max(1.0, rise)
        )

    def blocked(self, duals: np.ndarray) -> np.ndarray:
        """Mask of the groups in which every variable has a price (reduced cost) > 0."""
        reduced = self._program().transposed(-duals)[:-1]
        cheap = reduced <= PRICE
        shares = self.shares
        ways = np.bincount(shares.first[cheap], minlength=shares.groups)
        both = cheap & (shares.second != ALONE)
        return (ways + np.bincount(shares.second[both], minlength=shares.groups)) == 0

    def _solve(self) -> bool:
        """Solve, adding pairs until no other pair would help; True if feasible."""
        while self._run():
            entrants = self._entrants(np.array(self._solver.getSolution().row_dual))
            if not len(entrants):
                return True
            self._enter(entrants)
        return False

    def _make_room(self) -> None:
        """Restore feasibility by adding pairs, and relax the levels if needed.

        Levels reached with pairs may be infeasible without them, so pairs enter until the levels are feasible. The
        remaining shortfall is about the solver's tolerance; the bounds of the level rows are lowered accordingly.

        Raises:
            Infeasible: the levels would be lowered by more than 1e-7 in total.
            SolverTrouble: the solver failed.
        """
        self._aim(np.array([0.0, 1.0]), float(self._row_lower[self._first_level :].max()))
        if not self._solve():
            raise SolverTrouble(f"{self.place}: the solver found no solution of a linear program that has one")
        short = 2 * float(self._solver.getSolution().col_value[_SHORT]) + TOLERANCE
        self._slack += short
        if self._slack > _MOST_SLACK:
            raise Infeasible(f"{self.place}: levels reached earlier are {self._slack} too high")
        self._row_lower[self._first_level :] -= short
        self._aim(np.array([-1.0, 0.0]), 0.0)
        self._change(self._rates)

    def _aim(self, cost: np.ndarray, short: float) -> None:
        """Change the costs of rise and shortfall, and the upper bound of the shortfall."""
        self._own_cost, self._most_short = cost, short
        self._solver.changeColsCost(_OWN, np.arange(_OWN, dtype=np.int32), cost)
        self._solver.changeColBounds(_SHORT, 0.0, short)

    def _program(self) -> LinearProgram:
        lower = np.zeros(len(self._cost))
        return LinearProgram(
            self._cost, lower, self._upper, self._row_lower, self._row_upper, self._rows, self._columns, self._values
        )  # fmt: skip

    def _change(self, rates: np.ndarray) -> None:
        """Pass rates and row bounds to the solver; the first call creates the solver."""
        if self._solver is None:
            self._rates = rates.copy()
            self._values[-len(rates) :] = -rates
            self._told_lower = self._row_lower.copy()
            self._solver = self._new()
            return
        for g in np.flatnonzero(rates != self._rates).tolist():
            self._solver.changeCoeff(self._first_level + g, _RISE, -rates[g])
        self._rates = rates.copy()
        self._values[-len(rates) :] = -rates
        rows = np.flatnonzero(self._row_lower != self._told_lower).astype(np.int32)
        self._solver.changeRowsBounds(len(rows), rows, self._row_lower[rows], self._row_upper[rows])
        self._told_lower = self._row_lower.copy()
        self._solver.changeColBounds(_RISE, 0.0, self._upper[-1])

    def _new(self, careful: bool = False) -> Any:
        """Take a solver, and pass the current program and warm start to it."""
        import highspy

        solver = taken(len(self._row_lower), careful)
        self._careful = careful
        rising = np.flatnonzero(self._rates)
        starts, rows, values = self._matrix.part(self._inside)
        model = highspy.HighsLp()
        part = self._inside
        model.num_col_, model.num_row_ = _OWN + len(part), len(self._row_lower)
        model.col_cost_ = np.concatenate([self._own_cost, np.zeros(len(part))])
        model.col_lower_ = np.zeros(_OWN + len(part))
        model.col_upper_ = np.concatenate([[self._upper[-1], self._most_short], self._upper[part]])
        model.row_lower_, model.row_upper_ = self._row_lower, self._row_upper
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        every = self._first_level + np.arange(len(self._rates))
        begun = len(rising) + len(every)
        model.a_matrix_.start_ = np.concatenate([[0, len(rising)], starts + begun]).astype(np.int32)
        model.a_matrix_.index_ = np.concatenate([every[rising], every, rows]).astype(np.int32)
        model.a_matrix_.value_ = np.concatenate([-self._rates[rising], np.ones(len(every)), values])
        solver.passModel(model)
        if self._begin is not None and not careful:
            begin(solver, self._begin)
            self._begin = None
        return solver

    def close(self) -> None:
        """Return the solver to the pool, if it is a plain one."""
        if self._solver is not None and not self._careful:
            left(self._solver)
        self._solver = None

    def _run(self) -> bool:
        """Run the solver with its current variables; False if infeasible.

        If the warm start fails, the program is solved from scratch with all safeguards.
        """
        self._solver.run()
        if self._solver.getModelStatus().name != "kOptimal":
            self._solver = self._new(careful=True)
            self._solver.run()
        status = self._solver.getModelStatus()
        if status.name not in ("kOptimal", "kInfeasible"):
            raise SolverTrouble(f"{self.place}: {self._solver.modelStatusToString(status)}")
        return bool(status.name == "kOptimal")

    def _entrants(self, duals: np.ndarray) -> np.ndarray:
        """Variables outside the solver that would help: the best ones, up to a limit."""
        if len(self._inside) == self.shares.variables:
            return self._inside[:0]
        reduced = -self._program().transposed(duals)[:-1]
        reduced[self._inside] = 0.0
        better = np.flatnonzero(reduced < -TOLERANCE)
        most = _ENTRANTS * self.shares.groups
        return better if len(better) <= most else better[np.argpartition(reduced[better], most)[:most]]

    def _enter(self, columns: np.ndarray) -> None:
        starts, rows, values = self._matrix.part(columns)
        count = len(columns)
        none = np.zeros(count)
        self._solver.addCols(count, none, none, self._upper[columns], len(rows), starts[:-1], rows, values)
        self._inside = np.append(self._inside, columns)
