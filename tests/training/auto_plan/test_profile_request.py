"""Sizes that are measured: usable by plans for the workers, few, and as large as useful."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.training.auto_plan.profile_request import machine, sizes_to_measure
from tests.tiers import examples


@pytest.mark.parametrize(
    ("batch_size", "workers", "wanted"),
    [
        (16, 2, (1, 2, 4, 8)),
        (100, 2, (5, 10, 25, 50)),
        (16, 3, (1, 2, 4)),
        (7, 2, (1,)),
        (1, 4, (1,)),
        (8, 1, (1, 2, 4, 8)),
    ],
)
def test_sizes(batch_size: int, workers: int, wanted: tuple[int, ...]) -> None:
    """Cases worked out by hand."""
    assert sizes_to_measure(batch_size, workers) == wanted


@examples(100)
@given(st.integers(1, 500), st.integers(1, 16))
def test_each_size_divides_the_batch(batch_size: int, workers: int) -> None:
    """There are one to four sizes; each divides the batch and is at most a worker's share of it."""
    sizes = sizes_to_measure(batch_size, workers)
    assert 1 <= len(sizes) <= 4
    assert sizes == tuple(sorted(set(sizes)))
    assert all(batch_size % size == 0 and size <= max(1, batch_size // workers) for size in sizes)


def test_the_machine_is_described_the_same_twice() -> None:
    """A description that changed by itself would measure in every run."""
    assert machine() == machine()
