"""Other threads than the library's are chosen only if they gain more than chance."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hocket.hardware.overlap import OverlapModel, Rate
from hocket.planning.buckets.tensor_fusion import Fusion, ReadyGradients, allocate, joint
from hocket.planning.buckets.threads import WORTH, taken_buckets, taken_threads
from tests.planning.helpers.overlaps import V100, gradients, models
from tests.tiers import examples

THREADS = (128, 512, 2048)
SOME = ReadyGradients((2e7, 3e7, 1e7), (5e-3, 4e-3, 6e-3))


@examples(30)
@given(found=gradients(5), model=models(), own=st.sampled_from(THREADS))
def test_taken_only_where_they_gain(found: ReadyGradients, model: OverlapModel, own: int) -> None:
    """The result is the library's number, or one that is faster by more than WORTH."""
    known = replace(model, threads=THREADS, own_threads=own)
    ends = tuple(range(1, len(found.sizes_bytes) + 1))
    for taken, plain, other in (
        (taken_buckets(found, known, THREADS), joint(found, known, (own,)), joint(found, known, THREADS)),
        (
            taken_threads(found, known, ends, THREADS),
            Fusion(ends, (own,) * len(ends)),
            allocate(found, known, ends, THREADS),
        ),
    ):
        plain_s, other_s = (one.backward_s(found, known) for one in (plain, other))
        assert taken == (other if plain_s / other_s - 1 > WORTH else plain)


def test_threads_that_gain_next_to_nothing() -> None:
    """Four threads that gain a hundredth of a percent are not chosen.

    The search itself prefers them, because they cost nothing.
    """
    most = V100.alone.most_bytes_per_s
    rate = Rate(most, 1e-3 * most, 1.0)
    even = replace(V100, taken=0.0, beside=rate, alone=rate, threads=(1, 4), own_threads=1)
    assert 4 in joint(SOME, even, (1, 4)).threads
    assert set(taken_buckets(SOME, even, (1, 4)).threads) == {1}
    assert set(taken_threads(SOME, even, (1, 2, 3), (1, 4)).threads) == {1}


def test_threads_that_gain_less_than_the_fit_is_off() -> None:
    """A gain below the model's own error does not count."""
    most = V100.alone.most_bytes_per_s
    rate = Rate(most, 0.2 * most, 1.0)
    some = replace(V100, taken=0.0, beside=rate, alone=rate, threads=(1, 4), own_threads=1)
    (plain_s, other_s) = (joint(SOME, some, choice).backward_s(SOME, some) for choice in ((1,), (1, 4)))
    gain = plain_s / other_s - 1
    assert gain > 0.01
    for error, taken in ((0.9 * gain, True), (1.1 * gain, False)):
        assert (4 in taken_buckets(SOME, replace(some, error=error), (1, 4)).threads) == taken


def test_of_numbers_that_are_not_the_librarys() -> None:
    """Measured numbers are chosen if the library's own was not measured.

    Without any measured numbers, the library's own is used.
    """
    assert set(taken_buckets(SOME, replace(V100, own_threads=1), THREADS).threads) <= set(THREADS)
    assert set(taken_buckets(SOME, replace(V100, own_threads=64)).threads) == {64}
