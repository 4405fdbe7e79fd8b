"""Linear programs: built from index arrays, solved by HiGHS, their answers verified here.

    minimize c x   subject to   row_lower <= A x <= row_upper,  lower <= x <= upper

The gap is not taken from the solver: from its duals a bound is computed that holds whatever they are, and compared with
what its x is worth.
Source: weak duality; any text on linear programming.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hocket.errors import InternalError

TOLERANCE = 1e-9
_INFINITY = float("inf")
_SMALL = 20_000  # entries: below, the simplex method is quick from any basis


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
        y = np.where((y > 0) & np.isinf(self.row_lower) | (y < 0) & np.isinf(self.row_upper), 0.0, y)
        reduced = self.cost - self.transposed(y)
        terms = (_least(y, self.row_lower, self.row_upper), _least(reduced, self.lower, self.upper))
        return float(sum(term.sum() for term in terms))

    def violation(self, x: np.ndarray) -> float:
        """By how much x breaks a constraint at most, relative to what the constraint asks."""
        row = self.product(x)
        over = np.maximum(self.row_lower - row, row - self.row_upper)
        sides = np.where(np.isfinite(self.row_upper), np.abs(self.row_upper), np.abs(self.row_lower))
        sides = np.where(np.isfinite(sides), sides, 0.0)
        box = np.maximum(self.lower - x, x - self.upper)
        return float(max((over / (1 + sides)).max(initial=0.0), box.max(initial=0.0), 0.0))


def _least(factors: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """The least of factor * v for lower <= v <= upper."""
    side = np.where(factors > 0, lower, np.where(factors < 0, upper, 0.0))
    return np.multiply(factors, side, out=np.zeros_like(side), where=factors != 0)


@dataclass(frozen=True, eq=False)
class Solution:
    """An answer.

    Attributes:
        x: the variables; duals: of the rows, >= 0 where a lower side binds.
        objective: c x. bound: no x costs less. gap: their distance, relative.
        basis: where simplex ended, for a later start.
    """

    x: np.ndarray
    duals: np.ndarray
    objective: float
    bound: float
    basis: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)

    @property
    def gap(self) -> float:
        """Relative to the objective, or to 1 where that is less."""
        return max(0.0, self.objective - self.bound) / max(1.0, abs(self.objective))


class Infeasible(SolverTrouble):
    """No x keeps the constraints."""


def solve(program: Program, place: str, basis: tuple[np.ndarray, np.ndarray] | None = None) -> Solution:
    """The best x.

    Arguments:
        place: for messages.
        basis: states of columns and rows, as a solution has them, to begin from.

    Raises:
        Infeasible: no x keeps the constraints.
        SolverTrouble: the solver gave up.
    """
    import highspy

    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("primal_feasibility_tolerance", TOLERANCE)
    solver.setOptionValue("dual_feasibility_tolerance", TOLERANCE)
    if basis is None and len(program.values) > _SMALL:
        solver.setOptionValue("solver", "ipm")
    solver.passModel(_model(program, highspy))
    if basis is not None:
        began = highspy.HighsBasis()
        states = [highspy.HighsBasisStatus(code) for code in range(5)]
        began.col_status = [states[code] for code in basis[0].tolist()]
        began.row_status = [states[code] for code in basis[1].tolist()]
        solver.setBasis(began)
    solver.run()
    status = solver.getModelStatus()
    if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
        raise Infeasible(f"{place}: nothing keeps the constraints")
    if status != highspy.HighsModelStatus.kOptimal:
        raise SolverTrouble(f"{place}: {solver.modelStatusToString(status)}")
    found = solver.getSolution()
    x, duals = np.array(found.col_value), np.array(found.row_dual)
    ended = solver.getBasis()
    kept = None
    if ended.valid:
        kept = (
            np.array([int(s) for s in ended.col_status], dtype=np.int8),
            np.array([int(s) for s in ended.row_status], dtype=np.int8),
        )
    return Solution(x, duals, float(program.cost @ x), program.bound(duals), kept)


def _model(program: Program, highspy: Any) -> Any:
    order = np.lexsort((program.rows, program.columns))
    rows, columns, values = program.rows[order], program.columns[order], program.values[order]
    first = np.ones(len(rows), dtype=bool)
    first[1:] = (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])
    if not first.all():
        values = np.add.reduceat(values, np.flatnonzero(first))
        rows, columns = rows[first], columns[first]
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(program.cost), len(program.row_lower)
    model.col_cost_, model.col_lower_, model.col_upper_ = program.cost, program.lower, program.upper
    model.row_lower_, model.row_upper_ = program.row_lower, program.row_upper
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.searchsorted(columns, np.arange(len(program.cost) + 1)).astype(np.int32)
    model.a_matrix_.index_, model.a_matrix_.value_ = rows.astype(np.int32), values
    return model
