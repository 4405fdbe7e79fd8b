"""Linear programs from index arrays, solved by HiGHS, with a verified gap.

    minimize c x   subject to   row_lower <= A x <= row_upper,  lower <= x <= upper

The gap is not taken from the solver. A bound that is valid for any duals is computed from the solver's duals, and
compared with the objective of the solver's x.
Source: weak duality; any text on linear programming.
"""

import weakref
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hocket.errors import InternalError

TOLERANCE = 1e-9
Basis = tuple[np.ndarray, np.ndarray]  # HiGHS basis status of each column, and of each row
# Method without a basis, by number of entries: primal simplex is fastest below the first number, and with
# few rows and many columns; the interior-point method above the second number; else dual simplex.
_SMALL, _LARGE = 350, 8_000
_FEW, _WIDE = 1_000, 4  # rows; columns per row
_PRIMAL, _DUAL = 4, 1  # HiGHS's codes for the two simplex methods
_AT_LOWER, _BASIC, _AT_UPPER = 0, 1, 2  # HiGHS's basis states
# Model statuses of HiGHS.
_OPTIMAL, _IMPOSSIBLE = "Optimal", ("Infeasible", "Primal infeasible or unbounded")
# Solver options of each method.
_METHODS = {
    "primal": (("solver", "simplex"), ("simplex_strategy", _PRIMAL)),
    "dual": (("solver", "simplex"), ("simplex_strategy", _DUAL)),
    "ipm": (("solver", "ipm"),),
}
# Idle solvers; creating one costs as much time as solving a small program.
_idle: list["_Engine"] = []


class SolverTrouble(InternalError):
    """No solution was found; the message names the linear program."""


@dataclass(frozen=True, eq=False)
class LinearProgram:
    """Linear program in arrays: minimize the cost of x within bounds of x and of A x.

    A has the entries (rows, columns, values), in any order; duplicates are added. `lower` and `upper` are bounds of x,
    `row_lower` and `row_upper` of A x.
    """

    cost: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    row_lower: np.ndarray
    row_upper: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray

    def product(self, x: np.ndarray) -> np.ndarray:
        """Value of each row, A x."""
        return np.bincount(self.rows, self.values * x[self.columns], len(self.row_lower))

    def transposed(self, y: np.ndarray) -> np.ndarray:
        """Product y A of the row duals y with the matrix; one value per column."""
        return np.bincount(self.columns, self.values * y[self.rows], len(self.cost))

    def bound(self, y: np.ndarray) -> float:
        """Lower bound of the cost of any feasible x, from any row duals y.

        A dual counts as 0 if the row has no finite bound on the side of the dual's sign. A variable without finite
        bounds makes the result -inf at the smallest error of the duals.
        """
        sides = np.where(y > 0, self.row_lower, self.row_upper)
        known = np.isfinite(sides)
        y, sides = np.where(known, y, 0.0), np.where(known, sides, 0.0)
        return float(y.dot(sides)) + _least(self.cost - self.transposed(y), self.lower, self.upper)

    def violation(self, x: np.ndarray) -> float:
        """Largest violation of a row or of a variable's bound by x; 0 if there is none.

        The violation of a row is relative to 1 + |its upper bound| (its lower bound if the upper one is infinite).
        """
        row = self.product(x)
        over = np.maximum(self.row_lower - row, row - self.row_upper)
        sides = np.where(np.isfinite(self.row_upper), np.abs(self.row_upper), np.abs(self.row_lower))
        sides = np.where(np.isfinite(sides), sides, 0.0)
        box = np.maximum(self.lower - x, x - self.upper)
        return float(max((over / (1 + sides)).max(initial=0.0), box.max(initial=0.0), 0.0))


def _least(factors: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> float:
    """Minimum of factors @ v for lower <= v <= upper."""
    found = float(factors.dot(np.where(factors > 0, lower, upper)))
    if found == found:
        return found
    at = factors.nonzero()[0]  # 0 times an infinite bound counts as 0
    return float(factors[at].dot(np.where(factors > 0, lower, upper)[at]))


@dataclass(eq=False)
class _Engine:
    """HiGHS instance that solves one program after the other.

    Attributes:
        solver: the `highspy.Highs` object.
        method: current key of `_METHODS`.
        turn: number of programs solved so far. A solution stores it, to see later if the instance still holds the
            solution's program.
        ended: reference to the state of the last program.
    """

    solver: Any
    method: str = ""
    turn: int = 0
    ended: "weakref.ref[_Ended] | None" = None

    def turn_to(self, method: str) -> None:
        """Switch to a method of `_METHODS`.

        If the last program's solution is still in use, its basis is read first.
        """
        ended = None if self.ended is None else self.ended()
        if ended is not None:
            ended.look()
        self.ended = None
        if method != self.method:
            for option, value in _METHODS[method]:
                self.solver.setOptionValue(option, value)
            self.method = method


@dataclass(frozen=True, eq=False)
class _Ended:
    """Solved program, with the HiGHS instance and the instance's `turn` at the end."""

    engine: _Engine
    turn: int
    program: LinearProgram

    @cached_property
    def basic(self) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the basic columns and rows, read from the solver on first access."""
        return _basic(self.engine)

    def look(self) -> None:
        """Read the basis now, before the solver gets another program."""
        self.basic  # noqa: B018


@dataclass(frozen=True, eq=False)
class Solution:
    """Solution of a linear program.

    Attributes:
        x: values of the variables.
        duals: duals of the rows; >= 0 where a lower bound binds, <= 0 where an upper bound binds.
        objective: c x.
        bound: lower bound of the cost of any feasible x.
        known: basis of a solution that HiGHS did not compute; None if unknown.
    """

    x: np.ndarray
    duals: np.ndarray
    objective: float
    bound: float
    _ended: _Ended | None = field(default=None, repr=False)
    known: Basis | None = field(default=None, repr=False)

    @property
    def gap(self) -> float:
        """Gap between objective and bound, relative to max(1, |objective|)."""
        return max(0.0, self.objective - self.bound) / max(1.0, abs(self.objective))

    @cached_property
    def basis(self) -> Basis | None:
        """Basis status of columns and rows, for a warm start; None if unknown."""
        if self._ended is None:
            return self.known
        program = self._ended.program
        columns = _states(self.x, program.lower, program.upper)
        rows = _states(program.product(self.x), program.row_lower, program.row_upper)
        basic_columns, basic_rows = self._ended.basic
        columns[basic_columns] = _BASIC
        rows[basic_rows] = _BASIC
        return columns, rows


def _states(values: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Nonbasic status of each value: at the nearer of its bounds."""
    return np.where(upper - values < values - lower, _AT_UPPER, _AT_LOWER).astype(np.int8)


class Infeasible(SolverTrouble):
    """The constraints are infeasible."""


def solve(
    program: LinearProgram, place: str, basis: Basis | None = None, after: Solution | None = None, primal: bool = False
) -> Solution:
    """Solve a linear program; if a method fails, the others are tried.

    Arguments:
        place: name of the program in error messages.
        basis: initial basis, as in `Solution.basis`.
        after: solution of a program that differs only in row bounds. Its solver continues if it still holds that
            program; otherwise the basis of `after` is used instead of `basis`.
        primal: True to start with primal simplex: the basis is primal feasible, but not optimal for new costs or
            columns.

    Raises:
        Infeasible: the constraints are infeasible.
        SolverTrouble: all methods failed, or the solver rejects the program.
    """
    if not len(program.cost):
        return _of_nothing(program, place)
    import highspy

    if after is not None and after._ended is not None:
        found = _went_on(program, place, after._ended)
        if found is not None:
            return found
        basis = after.basis
    first = _method(program) if basis is None else "primal" if primal else "dual"
    status = ""
    for method in (first, *(other for other in _METHODS if other != first)):
        engine = _taken(highspy, method)
        _pass(engine.solver, program, place)
        if basis is not None and method == first:
            engine.solver.setBasis(_began(basis, highspy))
        status, answer = _run(engine, program, place)
        if answer is not None:
            return answer
    raise SolverTrouble(f"{place}: {status}")


def _taken(highspy: Any, method: str) -> _Engine:
    """Take or create an idle HiGHS instance, and set its method."""
    engine = _idle.pop() if _idle else _Engine(_solver(highspy))
    engine.turn_to(method)
    return engine


def _run(engine: _Engine, program: LinearProgram, place: str) -> tuple[str, Solution | None]:
    """Run the solver; the instance is idle afterwards.

    Returns:
        HiGHS's model status, and the solution; None if it is not optimal.

    Raises:
        Infeasible: the constraints are infeasible.
    """
    solver = engine.solver
    solver.run()
    engine.turn += 1
    _idle.append(engine)
    status = solver.modelStatusToString(solver.getModelStatus())
    if status in _IMPOSSIBLE:
        raise Infeasible(f"{place}: the constraints are infeasible")
    if status != _OPTIMAL:
        return status, None
    found = solver.getSolution()
    x, duals = np.array(found.col_value), np.array(found.row_dual)
    ended = _Ended(engine, engine.turn, program) if solver.getNumNz() else None
    engine.ended = weakref.ref(ended) if ended is not None else None
    return status, Solution(x, duals, float(program.cost @ x), program.bound(duals), ended)


def _basic(engine: _Engine) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the basic columns and rows of the last program; it must have entries."""
    if engine.method != "ipm":
        _, basic = engine.solver.getBasicVariables()
        return basic[basic >= 0], -1 - basic[basic < 0]
    # getBasicVariables needs simplex data; without it the process crashes.
    basis = engine.solver.getBasis()
    columns, rows = (np.fromiter(map(int, part), np.int8, len(part)) for part in (basis.col_status, basis.row_status))
    return np.flatnonzero(columns == _BASIC), np.flatnonzero(rows == _BASIC)


def _went_on(program: LinearProgram, place: str, ended: _Ended) -> Solution | None:
    """Solve a program that differs from the last one only in its row bounds, from the last basis.

    The dual simplex method continues from the basis that the HiGHS instance still holds.

    Arguments:
        place: name of the program in error messages.
        ended: HiGHS instance that solved the last program, and the turn in which it did.

    Returns:
        None if this HiGHS instance has solved another program since, is in use, or finds no optimum. The caller then
            solves the program from the start.

    Raises:
        Infeasible: the constraints are infeasible.
    """
    engine = ended.engine
    if engine.turn != ended.turn or engine not in _idle:
        return None
    _idle.remove(engine)
    engine.turn_to("dual")
    every = np.arange(len(program.row_lower), dtype=np.int32)
    engine.solver.changeRowsBounds(len(every), every, program.row_lower, program.row_upper)
    return _run(engine, program, place)[1]


def _of_nothing(program: LinearProgram, place: str) -> Solution:
    """Solution of a program without variables, which HiGHS does not accept."""
    if (program.row_lower > 0).any() or (program.row_upper < 0).any():
        raise Infeasible(f"{place}: the constraints are infeasible")
    return Solution(np.zeros(0), np.zeros(len(program.row_lower)), 0.0, 0.0)


def _method(program: LinearProgram) -> str:
    """Method expected to be fastest without an initial basis."""
    size, columns, rows = len(program.values), len(program.cost), len(program.row_lower)
    if (size < _SMALL or (rows < _FEW and columns > _WIDE * rows)) and _keeps_nothing(program):
        return "primal"
    return "dual" if size < _LARGE else "ipm"


def _solver(highspy: Any) -> Any:
    solver = highspy.Highs()
    for option, value in (
        ("output_flag", False),
        ("threads", 1),
        ("presolve", "off"),  # presolve finds little in these programs
        ("simplex_scale_strategy", 0),  # scaling is not needed either
        # Devex and Dantzig's rule: better weights cost more time than the steps they save.
        ("simplex_dual_edge_weight_strategy", 1),
        ("simplex_primal_edge_weight_strategy", 0),
        ("primal_feasibility_tolerance", TOLERANCE),
        ("dual_feasibility_tolerance", TOLERANCE),
    ):
        solver.setOptionValue(option, value)
    return solver


def _keeps_nothing(program: LinearProgram) -> bool:
    """True if x = 0 is feasible, as a start for the primal simplex method."""
    sides = ((program.lower, program.upper), (program.row_lower, program.row_upper))
    return all(np.maximum.reduce(least, initial=0) <= 0 <= np.minimum.reduce(most, initial=0) for least, most in sides)


def _began(basis: Basis, highspy: Any) -> Any:
    began = highspy.HighsBasis()
    states = [highspy.HighsBasisStatus(code) for code in range(5)]
    began.col_status = [states[code] for code in basis[0].tolist()]
    began.row_status = [states[code] for code in basis[1].tolist()]
    began.valid = True
    # A basis of full size needs no completion; the solver repairs a singular basis at the start.
    began.alien = int((basis[0] == _BASIC).sum() + (basis[1] == _BASIC).sum()) != len(basis[1])
    return began


def _pass(solver: Any, program: LinearProgram, place: str) -> None:
    """Pass the program to the solver by rows, with duplicate entries added."""
    count, width = len(program.row_lower), len(program.cost)
    at = program.rows * width + program.columns
    order = at.argsort(kind="stable")
    at, columns, values = at[order], program.columns[order], program.values[order]
    again = at[1:] == at[:-1]
    if np.count_nonzero(again):
        first = np.flatnonzero(np.append(True, ~again))
        at, columns, values = at[first], columns[first], np.add.reduceat(values, first)
    starts = at.searchsorted(np.arange(0, (count + 1) * width, width))
    status = solver.passModel(
        width, count, len(at), 2, 1, 0.0,  # row-wise; minimize; no objective offset
        program.cost, program.lower, program.upper, program.row_lower, program.row_upper,
        starts.astype(np.int32), columns.astype(np.int32), values, np.zeros(width, dtype=np.int32),
    )  # fmt: skip
    if int(status) < 0:
        raise SolverTrouble(f"{place}: the solver rejects the program")
