"""Pool of HiGHS solvers for linear programs that change gradually.

The next optimum is a few simplex steps from the last one. A plain solver reaches it fastest: primal simplex without
presolve, scaling and perturbation. A careful solver uses all safeguards of HiGHS instead.
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
_PATIENCE = 50  # limit of simplex iterations of a plain solver, per row
_idle: list[Any] = []  # idle plain solvers; creating one costs as much time as solving a small program


def taken(rows: int, careful: bool = False) -> Any:
    """HiGHS solver for a program: a plain one from the pool, or a new one.

    Arguments:
        rows: number of rows of the program, which limits the iterations of a plain solver.
        careful: True for a new solver with all safeguards. Plain solvers are to be returned with `left`.
    """
    if careful:
        return _made()
    solver = _idle.pop() if _idle else _made(_PLAIN)
    solver.setOptionValue("simplex_iteration_limit", _PATIENCE * rows)
    return solver


def left(solver: Any) -> None:
    """Return a plain solver to the pool."""
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
    """Basis after a solve: HiGHS's status code of each column and of each row."""
    basis = solver.getBasis()
    columns, rows = (np.fromiter(map(int, part), np.int8, len(part)) for part in (basis.col_status, basis.row_status))
    return columns, rows


def begin(solver: Any, basis: Basis) -> None:
    """Set the initial basis; the solver completes it if it does not fit exactly."""
    import highspy

    begun = highspy.HighsBasis()
    known = [highspy.HighsBasisStatus(code) for code in range(5)]
    begun.col_status, begun.row_status = ([known[code] for code in part.tolist()] for part in basis)
    solver.setBasis(begun)
