"""Linear programs: built from index arrays, solved by HiGHS, their answers verified here.

    minimize c x   subject to   row_lower <= A x <= row_upper,  lower <= x <= upper

The gap is not taken from the solver: from its duals a bound is computed that holds whatever they are, and compared with
what its x is worth.
Source: weak duality; any text on linear programming.
"""

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
_BASIC = 1  # and for the state of what is in the basis
# What HiGHS calls its answers.
_OPTIMAL, _IMPOSSIBLE = "Optimal", ("Infeasible", "Primal infeasible or unbounded")
# Solvers between two programs, by method: to make one takes as long as to solve a small program.
_idle: dict[str, list[Any]] = {"primal": [], "dual": [], "ipm": []}


class SolverTrouble(InternalError):
    """The solver found no answer, or one that does not hold; the place says in which program."""


@dataclass(frozen=True, eq=False)
class Program:
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
        y = np.where(np.isinf(np.where(y > 0, self.row_lower, self.row_upper)), 0.0, y)
        reduced = self.cost - self.transposed(y)
        return _least(y, self.row_lower, self.row_upper) + _least(reduced, self.lower, self.upper)

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
    at = np.flatnonzero(factors)
    factors = factors[at]
    return float(factors @ np.where(factors > 0, lower[at], upper[at]))


@dataclass(frozen=True, eq=False)
class Solution:
    """An answer.

    Attributes:
        x: the variables; duals: of the rows, >= 0 where a lower side binds.
        objective: c x. bound: no x costs less. gap: their distance, relative.
    """

    x: np.ndarray
    duals: np.ndarray
    objective: float
    bound: float
    _ended: Any = field(default=None, repr=False)

    @property
    def gap(self) -> float:
        """Relative to the objective, or to 1 where that is less."""
        return max(0.0, self.objective - self.bound) / max(1.0, abs(self.objective))

    @cached_property
    def basis(self) -> Basis | None:
        """States of columns and rows where simplex ended, for a later start; None where it has none."""
        if self._ended is None or not self._ended.valid:
            return None
        states = self._ended.col_status, self._ended.row_status
        columns, rows = (np.fromiter(map(int, part), np.int8, len(part)) for part in states)
        return columns, rows


class Infeasible(SolverTrouble):
    """No x keeps the constraints."""


def solve(program: Program, place: str, basis: Basis | None = None) -> Solution:
    """The best x. A method that gives up is followed by the others.

    Arguments:
        place: for messages.
        basis: states of columns and rows, as a solution has them, to begin from.

    Raises:
        Infeasible: no x keeps the constraints.
        SolverTrouble: the solver gave up.
    """
    if not len(program.cost):
        return _of_nothing(program, place)
    import highspy

    first = "dual" if basis is not None else _method(program)
    status = ""
    for method in (first, *(other for other in _idle if other != first)):
        idle = _idle[method]
        solver = idle.pop() if idle else _solver(highspy, method)
        _pass(solver, program, place)
        if basis is not None and method == first:
            solver.setBasis(_began(basis, highspy))
        solver.run()
        status = solver.modelStatusToString(solver.getModelStatus())
        idle.append(solver)
        if status in _IMPOSSIBLE:
            raise Infeasible(f"{place}: nothing keeps the constraints")
        if status == _OPTIMAL:
            found = solver.getSolution()
            x, duals = np.array(found.col_value), np.array(found.row_dual)
            return Solution(x, duals, float(program.cost @ x), program.bound(duals), solver.getBasis())
    raise SolverTrouble(f"{place}: {status}")


def _of_nothing(program: Program, place: str) -> Solution:
    """The answer to a program without variables, which the solver does not take."""
    if (program.row_lower > 0).any() or (program.row_upper < 0).any():
        raise Infeasible(f"{place}: nothing keeps the constraints")
    return Solution(np.zeros(0), np.zeros(len(program.row_lower)), 0.0, 0.0)


def _method(program: Program) -> str:
    """The quickest where there is no basis to begin from."""
    size, columns, rows = len(program.values), len(program.cost), len(program.row_lower)
    if (size < _SMALL or (rows < _FEW and columns > _WIDE * rows)) and _keeps_nothing(program):
        return "primal"
    return "dual" if size < _LARGE else "ipm"


def _solver(highspy: Any, method: str) -> Any:
    solver = highspy.Highs()
    for option, value in (
        ("output_flag", False),
        ("solver", "ipm" if method == "ipm" else "simplex"),
        ("simplex_strategy", _PRIMAL if method == "primal" else _DUAL),
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


def _keeps_nothing(program: Program) -> bool:
    """Whether x = 0 keeps the constraints: then the primal simplex method can begin there."""
    sides = ((program.lower, program.upper), (program.row_lower, program.row_upper))
    return all((least <= 0).all() and (most >= 0).all() for least, most in sides)


def _began(basis: Basis, highspy: Any) -> Any:
    began = highspy.HighsBasis()
    states = [highspy.HighsBasisStatus(code) for code in range(5)]
    began.col_status = [states[code] for code in basis[0].tolist()]
    began.row_status = [states[code] for code in basis[1].tolist()]
    began.valid = True
    # One that is as large as it has to be needs no completing; should it be singular, the solver mends it as it begins.
    began.alien = int((basis[0] == _BASIC).sum() + (basis[1] == _BASIC).sum()) != len(basis[1])
    return began


def _pass(solver: Any, program: Program, place: str) -> None:
    """Hand the program over, row by row, repeated entries added up."""
    count, width = len(program.row_lower), len(program.cost)
    at = program.rows * width + program.columns
    order = np.argsort(at, kind="stable")
    at, columns, values = at[order], program.columns[order], program.values[order]
    again = at[1:] == at[:-1]
    if again.any():
        first = np.flatnonzero(np.append(True, ~again))
        at, columns, values = at[first], columns[first], np.add.reduceat(values, first)
    starts = np.searchsorted(at, np.arange(count + 1) * width)
    status = solver.passModel(
        width, count, len(at), 2, 1, 0.0,  # by rows; to be minimised; nothing added to the objective
        program.cost, program.lower, program.upper, program.row_lower, program.row_upper,
        starts.astype(np.int32), columns.astype(np.int32), values, np.zeros(width, dtype=np.int32),
    )  # fmt: skip
    if int(status) < 0:
        raise SolverTrouble(f"{place}: the solver takes no such program")
