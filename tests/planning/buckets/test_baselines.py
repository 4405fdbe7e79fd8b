"""Bucket rules of other systems: which layers share a bucket."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.hardware.overlap import OverlapModel
from hocket.planning.buckets.baselines import by_bytes, by_window, each_layer, merged, no_overlap
from hocket.planning.buckets.tensor_fusion import ReadyGradients
from tests.planning.buckets.test_tensor_fusion import all_ways
from tests.planning.helpers.overlaps import V100, gradients, models
from tests.tiers import examples

QUICK = V100.on(2)
FIVE = ReadyGradients((4e6, 0.0, 4e6, 8e6, 0.0), (0.002, 0.002, 0.002, 0.002, 0.002))


@pytest.mark.parametrize(
    ("fusion", "ends"),
    [
        (no_overlap(FIVE, 128), (5,)),
        (each_layer(FIVE, 128), (1, 3, 4, 5)),  # nothing is moved behind the last layer with weights
        (by_bytes(FIVE, 1e6, 128), (2, 3, 5)),
        (by_bytes(FIVE, 5e6, 128), (3, 5)),
        (by_bytes(FIVE, 1e9, 128), (5,)),
        # Looks at 5 and 10 ms: two layers are ready, then all.
        (by_window(FIVE, V100, 128, 0.005), (2, 5)),
        (by_window(FIVE, QUICK, 128, 0.001), (1, 3, 4, 5)),
        (by_window(FIVE, V100, 128, 1.0), (5,)),
        (by_window(FIVE, V100, 128, 1.0, 9e6), (3, 5)),
    ],
)
def test_buckets(fusion, ends: tuple[int, ...]) -> None:  # type: ignore[no-untyped-def]
    assert fusion.ends == ends
    assert fusion.threads == (128,) * len(ends)


@examples(60)
@given(gradients(6), models())
def test_merging_is_the_best_where_nothing_contends(found: ReadyGradients, model: OverlapModel) -> None:
    free = model.without_contention()
    best = min(way.backward_s(found, free) for way in all_ways(len(found.sizes_bytes), 6, (512,)))
    assert merged(found, model, 512).backward_s(found, free) == pytest.approx(best, rel=1e-12)


@examples(60)
@given(gradients(6), models(), st.integers(1, 4096))
def test_no_overlap_is_one_after_the_other(found: ReadyGradients, model: OverlapModel, threads: int) -> None:
    took = no_overlap(found, threads).backward_s(found, model)
    assert took == pytest.approx(sum(found.computes_s) + model.alone_s(sum(found.sizes_bytes), threads))


def test_layers_merge_where_startup_is_long() -> None:
    """A startup longer than the backward merges all layers; none separates them.

    Layers without gradients never form their own bucket.
    """
    found = ReadyGradients((1e6,) * 6, (0.01,) * 6)
    slow, quick = (V100.on(workers) for workers in (4096, 2))
    assert slow.startup_s > sum(found.computes_s)
    assert merged(found, slow, 1024).ends == (6,)
    assert len(merged(found, quick, 1024).ends) > 3
    ready = list(accumulate(found.computes_s))
    assert merged(found, quick, 1024).backward_s(found, quick) >= ready[-1]


@pytest.mark.parametrize(
    "wrong", [lambda: no_overlap(FIVE, 0), lambda: by_bytes(FIVE, 0, 1), lambda: by_window(FIVE, V100, 1, -1.0)]
)
def test_wrong_questions(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError):
        wrong()
