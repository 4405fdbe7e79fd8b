"""Overlap model: equations 3 to 15 of LIBRA, by hand and as properties."""

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.hardware.overlap import OverlapModel, OverlapStage, Rate
from tests.planning.helpers.overlaps import V100, gradients, models
from tests.tiers import examples

PLAIN = OverlapModel(1.0, 1e-4, Rate(2e9, 1e9, 0.0), Rate(4e9, 2e9, 0.0), 1e-3, 2)
"""1 GB/s beside computation and 2 alone, whatever the threads; 2 ms of startup; half of the speed is left beside 5,000 threads."""


def test_the_equations_by_hand() -> None:
    assert PLAIN.startup_s == pytest.approx(2e-3)  # 2 (N - 1) alpha
    assert PLAIN.carried_bytes(8e6) == pytest.approx(8e6)  # 2 (N - 1) / N c
    assert PLAIN.computation_s(0.01, 5000) == pytest.approx(0.02)  # b / (1 - 1e-4 x 5000)
    assert PLAIN.beside_s(8e6, 5000) == pytest.approx(0.010)
    assert PLAIN.alone_s(8e6, 5000) == pytest.approx(0.006)
    rate = Rate(6e9, 5e9, 0.02)
    assert rate.at(256) == pytest.approx(6e9 - 5e9 * exp(-0.02 * 256**0.6))


def test_communication_that_ends_first_leaves_computation() -> None:
    # 10 ms of both, in which a half of 10 ms is computed; the rest of 20 ms goes on alone.
    assert PLAIN.overlapped(8e6, 0.020, 5000) == pytest.approx(OverlapStage(0.010, 0.015, 0.0))


def test_computation_that_ends_first_leaves_communication() -> None:
    # 4 ms alone take 8 beside; 80 % of the all-reduce are over, a fifth of 6 ms is left.
    assert PLAIN.overlapped(8e6, 0.004, 5000) == pytest.approx(OverlapStage(0.008, 0.0, 0.0012))


def test_a_backward_of_three_buckets_by_hand() -> None:
    """A backward of three buckets, by equations 12 to 15.

    The second bucket's gradients are not there when the first is moved; the third's are.
    """
    stages = PLAIN.stages((8e6, 8e6, 8e6), (0.01, 0.01, 0.002), (5000, 5000, 5000))
    assert stages[0] == pytest.approx(OverlapStage(0.0, 0.01, 0.0))
    # 12 ms are left, of which 5 are done in 10 ms; the second bucket waits for 5 more.
    assert stages[1] == pytest.approx(OverlapStage(0.010, 0.005, 0.0))
    # The last 2 ms take 4; 60 % of 6 ms follow alone. Then the last bucket, alone.
    assert stages[2] == pytest.approx(OverlapStage(0.004, 0.0, 0.0036))
    assert stages[3] == pytest.approx(OverlapStage(0.0, 0.0, 0.006))
    assert PLAIN.backward_s((8e6, 8e6, 8e6), (0.01, 0.01, 0.002), (5000,) * 3) == pytest.approx(0.0386)


@examples(100)
@given(gradients(6), models(), st.data())
def test_between_its_parts_and_their_sum(found, model: OverlapModel, data: st.DataObject) -> None:  # type: ignore[no-untyped-def]
    """Overlap is between its parts and their sum.

    It is never faster than computation or all all-reduces alone, and never slower than one after the other (assumption
    3).
    """
    threads = data.draw(
        st.lists(st.integers(1, 4096), min_size=len(found.sizes_bytes), max_size=len(found.sizes_bytes))
    )
    took = model.backward_s(found.sizes_bytes, found.computes_s, threads)
    moved = sum(model.alone_s(c, r) for c, r in zip(found.sizes_bytes, threads, strict=True) if c > 0)
    assert took >= max(sum(found.computes_s), moved) * (1 - 1e-9)
    assert took <= (sum(found.computes_s) + moved) * (1 + 1e-9)
    stages = model.stages(found.sizes_bytes, found.computes_s, threads)
    assert len(stages) == len(found.sizes_bytes) + 1
    assert all(min(stage) >= 0 and min(stage.computing_s, stage.communicating_s) <= 1e-12 for stage in stages)


@examples(50)
@given(gradients(6), models())
def test_without_contention_computation_is_not_slowed(found, model: OverlapModel) -> None:  # type: ignore[no-untyped-def]
    threads = (256,) * len(found.sizes_bytes)
    free = model.without_contention()
    assert free.backward_s(found.sizes_bytes, found.computes_s, threads) <= model.backward_s(
        found.sizes_bytes, found.computes_s, threads
    ) * (1 + 1e-9)


def test_other_numbers_of_workers_change_startup_and_bytes_only() -> None:
    more = V100.on(16)
    assert more.startup_s == pytest.approx(V100.startup_s * 15 / 7)
    assert more.carried_bytes(1.0) / V100.carried_bytes(1.0) == pytest.approx((15 / 16) / (7 / 8))
    assert more.computation_s(1.0, 512) == V100.computation_s(1.0, 512)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: V100.on(0), "workers"),
        (lambda: V100.share(10**5), "leave no core for computation"),
        (lambda: Rate(1e9, 2e9, 1e-9).at(1), "move no bytes"),
        (lambda: V100.stages((), (), ()), "at least one"),
        (lambda: V100.stages((1.0,), (1.0,), ()), "one size, computation"),
    ],
)
def test_wrong_figures(wrong, told: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=told):
        wrong()


def test_threads_with_which_something_stands_still_are_not_usable() -> None:
    """Too many threads stop computation, too few move no bytes: neither is usable."""
    model = OverlapModel(1.0, 0.1, Rate(1e9, 2e9, 0.5), Rate(1e9, 2e9, 0.5), 0.0, 2, (1, 2, 4, 8, 16))
    assert model.usable == (2, 4, 8)
