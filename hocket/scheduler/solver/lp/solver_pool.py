"""Solvers that are kept while the program that they have changes a little at a time.

From where one answer ended the next is a few steps away, and the plainest primal method takes them soonest. A careful solver
has all that the solver can do against trouble.
"""

from typing import Any

import numpy as np

from hocket.scheduler.solver.lp.linear_program import TOLERANCE, Basis

_PLAIN = (
    ("presolve", "off"),
    ("simplex_strategy", 4),
    ("simplex_primal_edge_weight_strategy", 0),
    ("simplex_scale_strategy", 0),
    ("primal_simplex_bound_perturbation_multiplier", 0.0),
    ("dual_simplex_cost_perturbation_multiplier", 0.0),
)
_PATIENCE = 50  # times the rows: steps after which a plain solver gives up
_idle: list[Any] = []  # plain ones that nobody uses: to make one takes as long as to solve a small program


def taken(rows: int, careful: bool = False) -> Any:
    """A solver for programs of so many rows; a plain one is to be left to others when done with."""
    if careful:
        return _made()
    solver = _idle.pop() if _idle else _made(_PLAIN)
    solver.setOptionValue("simplex_iteration_limit", _PATIENCE * rows)
    return solver


def left(solver: Any) -> None:
    """To others."""
    _idle.append(solver)


def _made(options: tuple[tuple[str, str | int | float], ...] = ()) -> Any:
    import highspy

    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("primal_feasibility_tolerance", TOLERANCE)
    solver.setOptionValue("dual_feasibility_tolerance", TOLERANCE)
    for option, value in options:
        solver.setOptionValue(option, value)
    return solver


def states(solver: Any) -> Basis:
    """Of columns and rows, where the solver ended."""
    basis = solver.getBasis()
    columns, rows = (np.fromiter(map(int, part), np.int8, len(part)) for part in (basis.col_status, basis.row_status))
    return columns, rows


def begin(solver: Any, basis: Basis) -> None:
    """From these states; the solver completes them where they do not quite fit."""
    import highspy

    begun = highspy.HighsBasis()
    known = [highspy.HighsBasisStatus(code) for code in range(5)]
    begun.col_status, begun.row_status = ([known[code] for code in part.tolist()] for part in basis)
    solver.setBasis(begun)
