"""Fit of the overlap model of buckets, and random draws of buckets."""

from itertools import accumulate, pairwise

import pytest

from hocket.errors import InputError
from hocket.hardware.overlap import OverlapModel, Rate
from hocket.training.calibrate.buckets.fit import Noted, OverlapStep, measured
from hocket.training.calibrate.buckets.random_buckets import BucketSampling, drawn

TRUE = OverlapModel(0.9, 0.05, Rate(4e8, 2e8, 0.5), Rate(8e8, 4e8, 0.5), 1e-3, 2, beside_latency_s=2e-3)
NAMES = tuple(f"layer{k}.weight" for k in range(12))
SIZES = tuple(1e5 * (k + 1) for k in range(12))
COMPUTES_S = tuple(1e-3 * (1 + k % 4) for k in range(12))


def step_of(buckets: list[range], threads: tuple[int, ...], begin_s: float) -> OverlapStep:
    """One backward as the model has it, played in small steps of time."""
    now_s, layer, done_s = 0.0, 0, 0.0
    arrivals: list[tuple[str, float]] = []
    sums: list[tuple[float, float]] = []
    bucket, left = -1, 0.0  # the bucket that moves, and what is left of it
    began_s = 0.0
    while layer < len(NAMES) or len(sums) < len(buckets):
        if left <= 0 and bucket + 1 < len(buckets) and layer >= buckets[bucket + 1].stop:
            bucket, left, began_s = bucket + 1, 1.0, now_s
        computes, moves = layer < len(NAMES), left > 0
        size_bytes = sum(SIZES[k] for k in buckets[bucket]) if moves else 0.0
        speed = TRUE.share(threads[bucket]) if moves else 1.0
        both = TRUE.beside_s if computes else TRUE.alone_s
        moving_s = left * both(size_bytes, threads[bucket]) if moves else float("inf")
        computing_s = (COMPUTES_S[layer] - done_s) / speed if computes else float("inf")
        spent_s = min(moving_s, computing_s)
        now_s += spent_s
        if moves:
            left = 0.0 if spent_s == moving_s else left * (1 - spent_s / moving_s)
            if left == 0.0:
                sums.append((begin_s + began_s, begin_s + now_s))
        if computes:
            done_s += spent_s * speed
            if spent_s == computing_s:
                arrivals.append((NAMES[layer], begin_s + now_s))
                layer, done_s = layer + 1, 0.0
    return OverlapStep((begin_s, arrivals[-1][1]), tuple(arrivals), tuple(sums))


def notes(drawing: BucketSampling) -> list[Noted]:
    """Return the measurements of one worker for every draw."""
    found = []
    for draw in drawn(NAMES, SIZES, drawing):
        ends = (0, *accumulate(map(len, draw.buckets)))
        buckets = [range(a, b) for a, b in pairwise(ends)]
        sizes = tuple(sum(SIZES[k] for k in own) for own in buckets)
        steps = tuple(step_of(buckets, draw.threads, 10.0 * k) for k in range(3))
        found.append(Noted(sizes, draw.threads, draw.buckets, steps))
    return found


def test_the_model_that_made_them_is_found() -> None:
    """The fit recovers the model that generated the measurements.

    It predicts every backward, also of draws that it has not seen.
    """
    own = notes(BucketSampling(24, 3, (1, 2, 4), seed=1))
    found = measured([own, own])
    model = found.fitted.model
    assert model.threads == (1, 2, 4)
    assert (model.kept, model.taken) == (pytest.approx(0.9, rel=1e-3), pytest.approx(0.05, rel=1e-3))
    for threads in (1, 2, 4):
        for size_bytes in (1e5, 5e6):
            assert model.beside_s(size_bytes, threads) == pytest.approx(TRUE.beside_s(size_bytes, threads), rel=1e-2)
            assert model.alone_s(size_bytes, threads) == pytest.approx(TRUE.alone_s(size_bytes, threads), rel=1e-2)
    assert len(found.held_out) == 6
    assert max(abs(run.error) for run in (*found.runs, *found.held_out)) < 0.01
    assert found.backward_s == pytest.approx(sum(COMPUTES_S))


def test_draws_are_the_same_for_the_same_seed_and_keep_every_layer() -> None:
    """Draws repeat with the same seed and keep every layer.

    Each draw has each layer once and in order, and one of the given numbers of threads for each bucket. The first
    draws have a single bucket.
    """
    drawing = BucketSampling(20, 3, (1, 3), seed=7)
    every = list(drawn(NAMES, SIZES, drawing))
    assert (
        every == list(drawn(NAMES, SIZES, drawing)) != list(drawn(NAMES, SIZES, BucketSampling(20, 3, (1, 3), seed=8)))
    )
    assert [draw.threads for draw in every[:2]] == [(1,), (3,)]
    for draw in every:
        assert tuple(name for bucket in draw.buckets for name in bucket) == NAMES
        assert len(draw.threads) == len(draw.buckets)
        assert set(draw.threads) <= {1, 3}
    assert len({draw.buckets for draw in every}) > 10


def test_layers_without_gradients_make_no_bucket() -> None:
    sizes = (0.0, 1e6, 0.0, 1e6, 0.0)
    for draw in drawn(NAMES[:5], sizes, BucketSampling(20, 1, (1,))):
        size_of = dict(zip(NAMES, sizes, strict=False))
        assert all(sum(size_of[name] for name in bucket) > 0 for bucket in draw.buckets)


@pytest.mark.parametrize(
    ("arguments", "place"), [((0, 1, (1,)), "draws"), ((1, 1, ()), "threads"), ((1, 1, (2, 1)), "threads")]
)
def test_wrong_drawings(arguments: tuple[int, int, tuple[int, ...]], place: str) -> None:
    with pytest.raises(InputError, match=place):
        BucketSampling(*arguments)


def test_too_little_was_seen() -> None:
    one = [noted for noted in notes(BucketSampling(4, 1, (1,))) if len(noted.threads) == 1]
    with pytest.raises(InputError, match="computations beside communication"):
        measured([one, one])
