"""Fits of latency and bandwidth to transfer times."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.hardware.cluster import Level, Link
from hocket.hardware.links import (
    ALL_REDUCE,
    POINT_TO_POINT,
    LinkSample,
    collective_cores,
    fit_all_reduce,
    fit_alpha_beta,
    fit_samples,
    ring_all_reduce_s,
    undisturbed_cores,
    with_fits,
)

SIZES = [float(2**k) for k in range(10, 25)]
links = st.builds(Link, st.floats(1e6, 1e12), st.floats(1e-7, 1e-2))
# The largest message takes longer than the latency; otherwise the bandwidth is lost in the noise.
wide = st.builds(
    lambda bandwidth, share: Link(bandwidth, share * SIZES[-1] / bandwidth), st.floats(1e6, 1e12), st.floats(1e-6, 0.99)
)


@given(links)
def test_exact_times_give_the_link_back(link: Link) -> None:
    """Exact times of 1 KiB to 16 MiB give any link back, with an error near zero."""
    fit = fit_alpha_beta(SIZES, [link.seconds(size) for size in SIZES])
    assert fit.worst_relative_error < 1e-6
    assert fit.samples == len(SIZES)
    for size in SIZES:
        assert fit.link.seconds(size) == pytest.approx(link.seconds(size), rel=1e-6)


@given(links, st.integers(2, 64))
def test_all_reduce_times_give_the_ring_step_back(link: Link, members: int) -> None:
    """Exact times of a ring all-reduce are predicted by their fit.

    This holds for any number of ranks.
    """
    seconds = [ring_all_reduce_s(members, size, link) for size in SIZES]
    fit = fit_all_reduce(members, SIZES, seconds)
    for size, time in zip(SIZES, seconds, strict=True):
        assert ring_all_reduce_s(members, size, fit.link) == pytest.approx(time, rel=1e-6)


@given(wide, st.integers(0, 2**32))
def test_disturbed_samples_do_not_move_the_line(link: Link, seed: int) -> None:
    """If one sample in five is ten times too slow, figures stay within 5 %.

    This holds for latency and bandwidth wherever they matter.
    """
    rng = random.Random(seed)
    sizes = [size for size in SIZES for _ in range(5)]
    slow = {5 * k + rng.randrange(5) for k in range(len(SIZES))}
    times = [link.seconds(size) * (10 if i in slow else rng.uniform(0.99, 1.01)) for i, size in enumerate(sizes)]
    fit = fit_alpha_beta(sizes, times)
    for size in SIZES:
        assert fit.link.seconds(size) == pytest.approx(link.seconds(size), rel=0.05)
    assert fit.worst_relative_error > 0.8


def test_the_reported_error_is_that_of_the_samples() -> None:
    """The reported error is that of the samples.

    Two sizes are measured 10 % too high and too low, so the line runs between them.
    """
    fit = fit_alpha_beta([1e3, 1e3, 1e6, 1e6], [0.9e-3, 1.1e-3, 0.9, 1.1])
    assert 0.05 <= fit.mean_relative_error <= 0.12
    assert fit.mean_relative_error <= fit.worst_relative_error <= 0.25


def test_the_latency_is_never_negative() -> None:
    """Times that would need a negative latency give a latency of zero."""
    fit = fit_alpha_beta([1e3, 1e6], [1e-9, 1e-3])
    assert fit.link.latency_s == 0
    assert fit.link.bandwidth_bytes_per_s > 0


@pytest.mark.parametrize("flat_s", [0.1e-3, 0.11e-3, 0.12e-3])
def test_short_messages_that_a_shaped_link_lets_pass_do_not_decide(flat_s: float) -> None:
    """Short messages that a shaped link lets pass do not affect the bandwidth.

    Times are from 200 Mbit/s with a token bucket: messages up to 16 KiB all took as long, and suggested 26 Gbit/s or no
    growth.
    """
    sizes = [4.0**k * 1024 for k in range(7)]
    times = [0.109e-3, 0.103e-3, flat_s, 1.556e-3, 9.823e-3, 42.899e-3, 174.464e-3]
    fit = fit_alpha_beta(sizes, times)
    assert fit.link.bandwidth_bytes_per_s == pytest.approx(200e6 / 8, rel=0.1)
    assert fit.link.latency_s < 1e-3


def test_a_ring_by_hand() -> None:
    """Four ranks, 4 MB at 1 GB/s and 10 us: six steps of 1 MB."""
    assert ring_all_reduce_s(4, 4e6, Link(1e9, 1e-5)) == pytest.approx(6 * (1e-3 + 1e-5))
    assert ring_all_reduce_s(1, 4e6, Link(1e9, 1e-5)) == 0


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [([], []), ([1.0], [1.0]), ([1.0, 1.0], [1.0, 2.0]), ([1.0, 2.0], [1.0]), ([1.0, 2.0], [0.0, 1.0]),
     ([1.0, 2.0], [float("nan"), 1.0]), ([-1.0, 2.0], [1.0, 2.0]), ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0])],
)  # fmt: skip
def test_samples_that_say_nothing_are_refused(sizes: list[float], seconds: list[float]) -> None:
    """Too few, mismatched, impossible or shrinking times are refused."""
    with pytest.raises(InputError, match="link samples"):
        fit_alpha_beta(sizes, seconds)


@pytest.mark.parametrize("members", [1, 0, -1])
def test_an_all_reduce_needs_two(members: int) -> None:
    """A fit needs two ranks, a prediction one."""
    with pytest.raises(InputError, match="members"):
        fit_all_reduce(members, [1.0, 2.0], [1.0, 2.0])
    if members < 1:
        with pytest.raises(InputError, match="members"):
            ring_all_reduce_s(members, 1.0, Link(1.0))


def test_samples_become_levels() -> None:
    """Samples of two levels and both kinds are fitted separately.

    A level without samples keeps its figures.
    """
    inner, outer, step = Link(4e9, 1e-5), Link(1e9, 1e-4), Link(5e8, 2e-4)
    samples = [LinkSample(0, POINT_TO_POINT, 2, int(size), inner.seconds(size)) for size in SIZES]
    samples += [LinkSample(2, POINT_TO_POINT, 2, int(size), outer.seconds(size)) for size in SIZES]
    samples += [LinkSample(2, ALL_REDUCE, 4, int(size), ring_all_reduce_s(4, size, step)) for size in SIZES]
    fits = fit_samples(samples)
    assert set(fits) == {(0, POINT_TO_POINT), (2, POINT_TO_POINT), (2, ALL_REDUCE)}
    before = (Level("server", 2, 7.0), Level("rack", 1, 8.0), Level("hall", 4, 9.0))
    after = with_fits(before, fits)
    assert after[1] == before[1]
    assert [level.name for level in after] == ["server", "rack", "hall"]
    assert after[0].all_reduce is None
    for found, wanted in ((after[0].link, inner), (after[2].link, outer), (after[2].all_reduce, step)):
        assert found is not None
        assert found.bandwidth_bytes_per_s == pytest.approx(wanted.bandwidth_bytes_per_s, rel=1e-6)
        assert found.latency_s == pytest.approx(wanted.latency_s, rel=1e-6)


def test_rings_of_different_sizes_are_not_mixed() -> None:
    """Two numbers of ranks on one level are refused, because their steps differ."""
    samples = [LinkSample(0, ALL_REDUCE, members, 1024 * members, 1e-3) for members in (2, 3)]
    with pytest.raises(InputError, match=r"level 0: found \[2, 3\] members"):
        fit_samples(samples)
    with pytest.raises(InputError, match="point_to_point or all_reduce"):
        LinkSample(0, "broadcast", 2, 1024, 1e-3)


def test_cores_of_collectives_are_those_of_undisturbed_ones() -> None:
    """Cores of collectives are those of undisturbed ones.

    Half of the transfers waited for cores that other processes used. The others count, and the busiest large size.
    """
    assert undisturbed_cores([1.0, 1.0, 4.0, 8.0], [0.9, 0.9, 0.9, 0.9]) == pytest.approx(0.9)
    small, large, largest = (
        LinkSample(0, ALL_REDUCE, 2, size, 1e-3, busy) for size, busy in ((1024, 1.4), (2**20, 0.9), (2**24, 0.5))
    )
    assert collective_cores((small, large, largest), 1) == 0.9
    assert collective_cores((small, large, largest), 2) == 0.45
    assert collective_cores((small,), 1) == 1.4
    assert collective_cores((replace(small, kind=POINT_TO_POINT),), 1) is None
