"""Series over time, against counting by hand and by brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.reporting.cluster_report.series import (
    MOST_BINS,
    amount,
    by_job,
    edges_of,
    jobs_present,
    jobs_running,
    workers_held,
)
from hocket.scheduler.simulation.metrics import held
from tests.reporting.helpers import clusters

EDGES = np.array([0.0, 20.0, 40.0, 60.0, 100.0])


def test_jobs_and_workers_by_hand() -> None:
    """Jobs and held workers in each bin match a count by hand.

    A refused job does not count.
    """
    run = clusters.pair()
    assert jobs_present(run, EDGES) == pytest.approx([1, 2, 2, 1])
    assert jobs_running(run, EDGES) == pytest.approx([1, 1, 2, 1])
    assert workers_held(run, EDGES) == pytest.approx(np.array([[1, 1, 1, 0], [0, 0, 1, 1]]))


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100), st.integers(1, 8)), max_size=20),
    st.integers(1, 30),
)
def test_amounts_are_those_of_the_overlaps(stretches: list[tuple[float, float, int]], bins: int) -> None:
    """Sums from sorted ends say what adding up each overlap says."""
    began = np.array([min(a, b) for a, b, _ in stretches])
    ended = np.array([max(a, b) for a, b, _ in stretches])
    size = np.array([float(n) for *_, n in stretches])
    edges = np.linspace(0.0, 100.0, bins + 1)
    overlaps = np.clip(np.minimum(ended[:, None], edges[1:]) - np.maximum(began[:, None], edges[:-1]), 0, None)
    assert amount(began, ended, size, edges) == pytest.approx(size @ overlaps / np.diff(edges), abs=1e-9)


def test_workers_are_those_of_metrics() -> None:
    """The workers held by types add up to the workers held by jobs.

    The second sum is that of the metrics.
    """
    run = clusters.crowd(30)
    edges = edges_of(run, run.ended_s)
    expected = held(run, edges).sum(axis=1).T / np.diff(edges)
    assert workers_held(run, edges) == pytest.approx(expected)


def test_worth_is_relative_to_a_worker_on_average() -> None:
    """The worth of a worker is relative to the average worker.

    The average worker does 7.5 steps per second; a fast worker is worth 10 / 7.5 and a slow worker 5 / 7.5.
    """
    own, worth = by_job(clusters.pair(), EDGES)
    assert own == pytest.approx(np.array([[1, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 0]]))
    assert worth[0] == pytest.approx(own[0] * 4 / 3)
    assert worth[1] == pytest.approx(own[1] * 2 / 3)


def test_bins_are_bounded_and_end_with_the_run() -> None:
    """The number of bins is bounded, and the last bin ends with the run.

    The bins of a shorter run are as long as the bins of the longest run.
    """
    long, short = clusters.crowd(5000), clusters.crowd(2500)
    edges = edges_of(long, long.ended_s)
    assert len(edges) == MOST_BINS + 1
    assert edges[-1] == long.ended_s
    other = edges_of(short, long.ended_s)
    assert other[-1] == short.ended_s
    assert np.diff(other)[0] == pytest.approx(np.diff(edges)[0], rel=0.02)
    assert len(edges_of(clusters.empty(), 1.0)) == 2
