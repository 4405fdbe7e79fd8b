"""Slowest of several replicas, compared with closed forms and random draws."""

from math import pi, sqrt

import numpy as np
import pytest

from hocket.cost.stragglers import slowest, tails


def test_the_greatest_of_few_normals_has_closed_forms() -> None:
    """Maxima of few normals have closed forms: means of one to three, variance of two.

    Figures for more are from published tables (Harter 1961).
    """
    means, variances = slowest(16)
    assert means[[0, 1]].tolist() == [0.0, 0.0]
    assert variances[1] == pytest.approx(1.0, abs=2e-6)
    assert means[2] == pytest.approx(1 / sqrt(pi), abs=1e-5)
    assert variances[2] == pytest.approx(1 - 1 / pi, abs=2e-6)
    assert means[3] == pytest.approx(1.5 / sqrt(pi), abs=1e-5)
    assert means[[4, 5, 10, 16]] == pytest.approx([1.02938, 1.16296, 1.53875, 1.76599], abs=1e-5)


@pytest.mark.parametrize("r", [2, 7, 40])
def test_the_greatest_of_many_is_what_draws_say(r: int) -> None:
    """Maxima of many normals agree with 200,000 draws, to five standard errors."""
    drawn = np.random.default_rng(r).normal(size=(200_000, r)).max(axis=1)
    means, variances = slowest(64)
    assert means[r] == pytest.approx(drawn.mean(), abs=5 * drawn.std() / sqrt(len(drawn)))
    assert variances[r] == pytest.approx(drawn.var(), rel=0.03)


def test_more_replicas_have_a_later_slowest() -> None:
    """Mean maxima rise more and more slowly, up to thousands of replicas."""
    means, _ = slowest(3072)
    steps = np.diff(means[1:])
    assert len(means) == 3073
    assert (steps > 0).all()
    assert (np.diff(steps) < 1e-9).all()
    assert means[3072] < sqrt(2 * np.log(3072))


def test_tables_of_two_means_apart() -> None:
    """Tables of lateness and of the chance to be overtaken agree with random draws.

    Both are 0 far out.
    """
    late, tail = tails()
    drawn = np.random.default_rng(3).normal(size=400_000)
    for z in (0.0, 0.5, 1.5):
        assert late[int(64 * z)] == pytest.approx(np.maximum(0.0, drawn - z).mean(), abs=4e-3)
        assert tail[int(64 * z)] == pytest.approx((drawn > z).mean(), abs=4e-3)
    assert (late[-1], tail[-1]) == (0.0, 0.0)
