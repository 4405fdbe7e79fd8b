"""Linear programs: built from index arrays, solved by HiGHS, their answers verified here.

    minimize c x   subject to   row_lower <= A x <= row_upper,  lower <= x <= upper

The gap is not taken from the solver: from its duals a bound is computed that holds whatever they are, and compared with
what its x is worth.
Source: weak duality; any text on linear programming.
"""

import weakref
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hocket.errors import InternalError

TOLERANCE = 1e-9
Basis = tuple[np.ndarray, np.ndarray]
# Where there is no basis to begin from, by entries: the primal simplex method is quickest below the first number, and where
# rows are few and columns many; else the dual one; the interior-point method above the second number.
_SMALL, _LARGE = 350, 8_000
_FEW, _WIDE = 1_000, 4  # rows; columns a row
_PRIMAL, _DUAL = 4, 1  # HiGHS's names for the two simplex methods
_AT_LOWER, _BASIC, _AT_UPPER = 0, 1, 2  # and for the states of what is in the basis, and of what is not
# What HiGHS calls its answers.
_OPTIMAL, _IMPOSSIBLE = "Optimal", ("Infeasible", "Primal infeasible or unbounded")
# For each method, what the solver is told to be.
_METHODS = {
    "primal": (("solver", "simplex"), ("simplex_strategy", _PRIMAL)),
    "dual": (("solver", "simplex"), ("simplex_strategy", _DUAL)),
    "ipm": (("solver", "ipm"),),
}
# Solvers between two programs: to make one takes as long as to solve a small program.
_idle: list["_Engine"] = []


class SolverTrouble(InternalError):
    """The solver found no answer, or one that does not hold; the place says in which program."""


@dataclass(frozen=True, eq=False)
class LinearProgram:
    """A linear program in arrays; entries (row, column, value) may come in any order, and repeat: then they add up."""

    cost: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    row_lower: np.ndarray
    row_upper: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray

    def product(self, x: np.ndarray) -> np.ndarray:
        """A x."""
        return np.bincount(self.rows, self.values * x[self.columns], len(self.row_lower))

    def transposed(self, y: np.ndarray) -> np.ndarray:
        """y A."""
        return np.bincount(self.columns, self.values * y[self.rows], len(self.cost))

    def bound(self, y: np.ndarray) -> float:
        """No x that keeps the constraints costs less, by the duals y of the rows, whatever they are.

        A dual of the wrong sign counts as 0. Variables without bounds of their own make it -inf at the least error.
        """
        sides = np.where(y > 0, self.row_lower, self.row_upper)
        known = np.isfinite(sides)
        y, sides = np.where(known, y, 0.0), np.where(known, sides, 0.0)
        return float(y.dot(sides)) + _least(self.cost - self.transposed(y), self.lower, self.upper)

    def violation(self, x: np.ndarray) -> float:
        """By how much x breaks a constraint at most, relative to what the constraint asks."""
        row = self.product(x)
        over = np.maximum(self.row_lower - row, row - self.row_upper)
        sides = np.where(np.isfinite(self.row_upper), np.abs(self.row_upper), np.abs(self.row_lower))
        sides = np.where(np.isfinite(sides), sides, 0.0)
        box = np.maximum(self.lower - x, x - self.upper)
        return float(max((over / (1 + sides)).max(initial=0.0), box.max(initial=0.0), 0.0))


def _least(factors: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> float:
    """The least of factors @ v for lower <= v <= upper."""
    found = float(factors.dot(np.where(factors > 0, lower, upper)))
    if found == found:
        return found
    at = factors.nonzero()[0]  # 0 times a bound that there is not is 0
    return float(factors[at].dot(np.where(factors > 0, lower, upper)[at]))


@dataclass(eq=False)
class _Engine:
    """A solver, and how many programs it was given: who remembers its count knows whether it still has theirs."""

    solver: Any
    method: str = ""
    turn: int = 0
    ended: "weakref.ref[_Ended] | None" = None

    def turn_to(self, method: str) -> None:
        """Use this method from now on; whoever may still ask where the last program ended looks first."""
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
    """Where a solver ended: which one, after how many answers, with which program."""

    engine: _Engine
    turn: int
    program: LinearProgram

    @cached_property
    def basic(self) -> tuple[np.ndarray, np.ndarray]:
        """Columns and rows that are in the basis; the solver is asked once somebody wants to know."""
        return _basic(self.engine)

    def look(self) -> None:
        """Ask it now, as it is about to get another program."""
        self.basic  # noqa: B018


@dataclass(frozen=True, eq=False)
class Solution:
    """An answer.

    Attributes:
        x: the variables; duals: of the rows, >= 0 where a lower side binds.
        objective: c x. bound: no x costs less. gap: their distance, relative.
        known: the basis, where no solver ended there.
    """

    x: np.ndarray
    duals: np.ndarray
    objective: float
    bound: float
    _ended: _Ended | None = field(default=None, repr=False)
    known: Basis | None = field(default=None, repr=False)

    @property
    def gap(self) -> float:
        """Relative to the objective, or to 1 where that is less."""
        return max(0.0, self.objective - self.bound) / max(1.0, abs(self.objective))

    @cached_property
    def basis(self) -> Basis | None:
        """States of columns and rows where simplex ended, for a later start; None where it has none."""
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
    """At which of its bounds each value is, or is nearer to."""
    return np.where(upper - values < values - lower, _AT_UPPER, _AT_LOWER).astype(np.int8)


class Infeasible(SolverTrouble):
    """No x keeps the constraints."""


def solve(
    program: LinearProgram, place: str, basis: Basis | None = None, after: Solution | None = None, primal: bool = False
) -> Solution:
    """The best x. A method that gives up is followed by the others.

    Arguments:
        place: for messages.
        basis: states of columns and rows, as a solution has them, to begin from.
        after: of a program that differs in the sides of rows only: it goes on there if nobody had its solver since.
        primal: the basis keeps the constraints, and it is by costs or new columns that it is not the best.

    Raises:
        Infeasible: no x keeps the constraints.
        SolverTrouble: the solver gave up.
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
    """A solver that nobody uses."""
    engine = _idle.pop() if _idle else _Engine(_solver(highspy))
    engine.turn_to(method)
    return engine


def _run(engine: _Engine, program: LinearProgram, place: str) -> tuple[str, Solution | None]:
    """What the solver says of the program that it has, and its answer if there is one; then it is free for others."""
    solver = engine.solver
    solver.run()
    engine.turn += 1
    _idle.append(engine)
    status = solver.modelStatusToString(solver.getModelStatus())
    if status in _IMPOSSIBLE:
        raise Infeasible(f"{place}: nothing keeps the constraints")
    if status != _OPTIMAL:
        return status, None
    found = solver.getSolution()
    x, duals = np.array(found.col_value), np.array(found.row_dual)
    ended = _Ended(engine, engine.turn, program) if solver.getNumNz() else None
    engine.ended = weakref.ref(ended) if ended is not None else None
    return status, Solution(x, duals, float(program.cost @ x), program.bound(duals), ended)


def _basic(engine: _Engine) -> tuple[np.ndarray, np.ndarray]:
    """Columns and rows that are in the basis where the solver ended; its program has entries."""
    if engine.method != "ipm":
        _, basic = engine.solver.getBasicVariables()
        return basic[basic >= 0], -1 - basic[basic < 0]
    # Only simplex leaves what that function looks at: without it the process dies.
    basis = engine.solver.getBasis()
    columns, rows = (np.fromiter(map(int, part), np.int8, len(part)) for part in (basis.col_status, basis.row_status))
    return np.flatnonzero(columns == _BASIC), np.flatnonzero(rows == _BASIC)


def _went_on(program: LinearProgram, place: str, ended: _Ended) -> Solution | None:
    """The answer from where a solver ended with other sides of rows; None if others have used it since, or it gives up."""
    engine = ended.engine
    if engine.turn != ended.turn or engine not in _idle:
        return None
    _idle.remove(engine)
    engine.turn_to("dual")
    every = np.arange(len(program.row_lower), dtype=np.int32)
    engine.solver.changeRowsBounds(len(every), every, program.row_lower, program.row_upper)
    return _run(engine, program, place)[1]


def _of_nothing(program: LinearProgram, place: str) -> Solution:
    """The answer to a program without variables, which the solver does not take."""
    if (program.row_lower > 0).any() or (program.row_upper < 0).any():
        raise Infeasible(f"{place}: nothing keeps the constraints")
    return Solution(np.zeros(0), np.zeros(len(program.row_lower)), 0.0, 0.0)


def _method(program: LinearProgram) -> str:
    """The quickest where there is no basis to begin from."""
    size, columns, rows = len(program.values), len(program.cost), len(program.row_lower)
    if (size < _SMALL or (rows < _FEW and columns > _WIDE * rows)) and _keeps_nothing(program):
        return "primal"
    return "dual" if size < _LARGE else "ipm"


def _solver(highspy: Any) -> Any:
    solver = highspy.Highs()
    for option, value in (
        ("output_flag", False),
        ("threads", 1),
        ("presolve", "off"),  # there is little to take out of these programs
        ("simplex_scale_strategy", 0),  # nor to be scaled
        # Devex and Dantzig's rule: better weights take longer than the steps that they spare.
        ("simplex_dual_edge_weight_strategy", 1),
        ("simplex_primal_edge_weight_strategy", 0),
        ("primal_feasibility_tolerance", TOLERANCE),
        ("dual_feasibility_tolerance", TOLERANCE),
    ):
        solver.setOptionValue(option, value)
    return solver


def _keeps_nothing(program: LinearProgram) -> bool:
    """Whether x = 0 keeps the constraints: then the primal simplex method can begin there."""
    sides = ((program.lower, program.upper), (program.row_lower, program.row_upper))
    return all(np.maximum.reduce(least, initial=0) <= 0 <= np.minimum.reduce(most, initial=0) for least, most in sides)


def _began(basis: Basis, highspy: Any) -> Any:
    began = highspy.HighsBasis()
    states = [highspy.HighsBasisStatus(code) for code in range(5)]
    began.col_status = [states[code] for code in basis[0].tolist()]
    began.row_status = [states[code] for code in basis[1].tolist()]
    began.valid = True
    # One that is as large as it has to be needs no completing; should it be singular, the solver mends it as it begins.
    began.alien = int((basis[0] == _BASIC).sum() + (basis[1] == _BASIC).sum()) != len(basis[1])
    return began


def _pass(solver: Any, program: LinearProgram, place: str) -> None:
    """Hand the program over, row by row, repeated entries added up."""
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
        width, count, len(at), 2, 1, 0.0,  # by rows; to be minimised; nothing added to the objective
        program.cost, program.lower, program.upper, program.row_lower, program.row_upper,
        starts.astype(np.int32), columns.astype(np.int32), values, np.zeros(width, dtype=np.int32),
    )  # fmt: skip
    if int(status) < 0:
        raise SolverTrouble(f"{place}: the solver takes no such program")
