"""Completion of low-rank tables."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.scheduler.estimator.matrix_completion import complete


def low_rank(rng: np.random.Generator, rows: int, columns: int, rank: int) -> np.ndarray:
    """A table that is a product of two thin ones, plus a mean."""
    return 0.5 + 0.3 * rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, columns))


@given(st.integers(0, 10_000), st.integers(1, 3))
def test_what_is_missing_of_a_table_of_low_rank_is_found(seed: int, rank: int) -> None:
    """The error on missing entries is a fraction of the column means' error.

    A fifth of the entries is missing.
    """
    rng = np.random.default_rng(seed)
    truth = low_rank(rng, 30, 40, rank)
    known = rng.random(truth.shape) > 0.2
    found = complete(np.where(known, truth, np.nan), known, rank, 1e-3, 40, np.random.default_rng(seed)).table
    assert np.array_equal(found[known], truth[known])
    means = np.broadcast_to(np.nanmean(np.where(known, truth, np.nan), 0), truth.shape)
    assert np.abs(found - truth)[~known].mean() < 0.2 * np.abs(means - truth)[~known].mean()


def test_a_new_row_is_found_from_a_few_entries() -> None:
    """Five of 40 entries determine a row of a table of rank 2.

    Without known entries the row is the mean; with all of them they are nearly kept.
    """
    rng = np.random.default_rng(1)
    truth = low_rank(rng, 31, 40, 2)
    fit = complete(truth[:-1], np.ones((30, 40), dtype=bool), 2, 1e-6, 30, rng)
    known = np.zeros(40, dtype=bool)
    assert np.allclose(fit.row(truth[-1], known), truth[:-1].mean(0))
    known[:5] = True
    assert np.abs(fit.row(truth[-1], known) - truth[-1]).max() < 0.01


def test_measuring_makes_rows_less_uncertain() -> None:
    """The variance of every entry falls with each known entry.

    It falls most for the entry itself.
    """
    rng = np.random.default_rng(2)
    fit = complete(low_rank(rng, 20, 10, 3), np.ones((20, 10), dtype=bool), 3, 0.01, 20, rng)
    known = np.zeros(10, dtype=bool)
    before = fit.variance(known)
    known[4] = True
    after = fit.variance(known)
    assert (after <= before + 1e-9).all()
    assert after[4] < 0.011 < before[4]


def test_factors_of_the_table_have_unit_variance() -> None:
    """Row factors have unit variance, as the ridge expects.

    The variance of entries is that of the columns.
    """
    rng = np.random.default_rng(3)
    table = low_rank(rng, 200, 12, 2)
    fit = complete(table, np.ones(table.shape, dtype=bool), 2, 1e-3, 30, rng)
    assert np.allclose((fit.loadings**2).sum(0), table.var(0, ddof=1), rtol=0.02)


def test_the_same_seed_gives_the_same_table() -> None:
    """Equal seeds give bitwise equal tables."""
    table = low_rank(np.random.default_rng(4), 8, 9, 2)
    known = table > 0.4
    first, second = (complete(table, known, 2, 0.01, 5, np.random.default_rng(7)).table for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize(("rank", "ridge", "rounds"), [(0, 0.1, 5), (2, 0.0, 5), (2, float("nan"), 5), (2, 0.1, 0)])
def test_what_cannot_be_solved_is_refused(rank: int, ridge: float, rounds: int) -> None:
    """No rank, ridge, rounds or rows, and different shapes, are refused."""
    table = np.ones((3, 3))
    with pytest.raises(InputError, match="completion"):
        complete(table, table > 0, rank, ridge, rounds, np.random.default_rng(0))
    with pytest.raises(InputError, match="completion: table"):
        complete(np.ones((0, 3)), np.ones((0, 3), dtype=bool), 1, 0.1, 1, np.random.default_rng(0))
    with pytest.raises(InputError, match="completion: table"):
        complete(table, np.ones((2, 3), dtype=bool), 1, 0.1, 1, np.random.default_rng(0))
