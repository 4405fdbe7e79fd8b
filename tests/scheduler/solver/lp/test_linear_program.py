"""Linear programs: solutions, bounds for any duals, and infeasibility."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.scheduler.solver.lp import linear_program
from hocket.scheduler.solver.lp.linear_program import Infeasible, LinearProgram, SolverTrouble, solve
from tests.tiers import examples

seeds = st.integers(0, 2**32 - 1)


def some(seed: int, columns: int = 6, rows: int = 4) -> LinearProgram:
    """A program with the feasible point x = 0 and some duplicate entries."""
    rng = np.random.default_rng(seed)
    entries = 3 * columns
    return LinearProgram(
        rng.uniform(-2, 1, columns),
        np.zeros(columns),
        rng.uniform(0.5, 2, columns),
        np.where(rng.random(rows) < 0.5, -np.inf, -rng.uniform(0, 1, rows)),
        rng.uniform(0.1, 2, rows),
        rng.integers(0, rows, entries),
        rng.integers(0, columns, entries),
        rng.uniform(-1, 2, entries),
    )


def dense(program: LinearProgram) -> np.ndarray:
    """Dense matrix of a program."""
    matrix = np.zeros((len(program.row_lower), len(program.cost)))
    np.add.at(matrix, (program.rows, program.columns), program.values)
    return matrix


@given(seeds)
def test_an_answer_keeps_the_constraints_and_its_bound_is_what_it_is_worth(seed: int) -> None:
    """A solution is feasible with a negligible gap; duplicate entries add up."""
    program = some(seed)
    found = solve(program, "here")
    row = dense(program) @ found.x
    assert (row <= program.row_upper + 1e-8).all()
    assert (row >= program.row_lower - 1e-8).all()
    assert program.violation(found.x) <= 1e-8
    assert found.gap <= 1e-8
    assert found.objective == pytest.approx(program.cost @ found.x)


@given(seeds)
def test_any_duals_give_a_bound(seed: int) -> None:
    """No feasible x costs less than the bound of random duals."""
    program = some(seed)
    rng = np.random.default_rng(seed + 1)
    best = solve(program, "here").objective
    for _ in range(5):
        assert program.bound(rng.normal(0, 2, len(program.row_lower))) <= best + 1e-8


def test_a_broken_constraint_is_measured() -> None:
    """x = (1, 1) violates x1 + x2 <= 1 by 1: half of the side plus 1."""
    none = np.zeros(2)
    program = LinearProgram(
        none, none, none + 1, np.array([-np.inf]), np.array([1.0]), np.zeros(2, int), np.arange(2), np.ones(2)
    )
    assert program.violation(np.array([1.0, 1.0])) == pytest.approx(0.5)
    assert program.violation(np.array([1.0, 0.0])) == 0.0
    assert program.violation(np.array([-0.25, 0.0])) == pytest.approx(0.25)


@pytest.mark.parametrize("size", [6, 80, 700])
def test_every_method_has_the_same_answer(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method gives the same optimum."""
    program = some(7, size, size // 2)
    found = []
    for method in ("primal", "dual", "ipm"):
        monkeypatch.setattr(linear_program, "_method", lambda _, method=method: method)
        found.append(solve(program, "here"))
        assert found[-1].gap <= 1e-8
    assert found[1].objective == pytest.approx(found[0].objective, rel=1e-8)
    assert found[2].objective == pytest.approx(found[0].objective, rel=1e-8)


@examples(30)
@given(seeds, st.integers(0, 4))
def test_from_any_basis_the_answer_is_the_same(seed: int, kind: int) -> None:
    """Any initial basis gives the same optimum, even an invalid one."""
    program, rng = some(seed), np.random.default_rng(seed)
    cold = solve(program, "here")
    own = cold.basis
    assert own is not None
    bases = [
        own,
        solve(some(seed + 1), "here").basis,
        (np.zeros(6, np.int8), np.zeros(4, np.int8)),
        (np.ones(6, np.int8), np.ones(4, np.int8)),
        (rng.integers(0, 2, 6).astype(np.int8), rng.integers(0, 2, 4).astype(np.int8)),
    ]
    warm = solve(program, "here", bases[kind])
    assert warm.objective == pytest.approx(cold.objective, rel=1e-8, abs=1e-10)
    assert warm.gap <= 1e-8


def test_what_cannot_be_is_told_with_its_place() -> None:
    """Infeasible programs are reported with their name.

    Examples are a row beyond its variables, and a program without variables.
    """
    one = np.ones(1)
    program = LinearProgram(one, 0 * one, one, 2 * one, np.inf * one, np.zeros(1, int), np.zeros(1, int), one)
    with pytest.raises(Infeasible, match="over there"):
        solve(program, "over there")
    none, index = np.zeros(0), np.zeros(0, int)
    with pytest.raises(Infeasible, match="nowhere"):
        solve(LinearProgram(none, none, none, one, 2 * one, index, index, none), "nowhere")
    assert solve(LinearProgram(none, none, none, 0 * one, one, index, index, none), "nothing").objective == 0.0


def test_a_solver_that_met_what_cannot_be_is_as_good_as_new() -> None:
    """After an infeasible program, a solver gives the same results as a new one."""
    one = np.ones(1)
    bad = LinearProgram(one, 0 * one, one, 2 * one, np.inf * one, np.zeros(1, int), np.zeros(1, int), one)
    before = solve(some(3), "here").objective
    with pytest.raises(Infeasible):
        solve(bad, "here")
    assert solve(some(3), "here").objective == before


def test_a_method_that_gives_up_is_followed_by_another() -> None:
    """If the primal simplex method gives up, another method solves the program."""
    assert solve(some(112128), "here").gap <= 1e-8


def test_when_all_methods_give_up_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """If all methods give up, the error has the name and the solver's status."""
    monkeypatch.setattr(linear_program, "_OPTIMAL", "better than that")
    with pytest.raises(SolverTrouble, match="over there: Optimal"):
        solve(some(3), "over there")
