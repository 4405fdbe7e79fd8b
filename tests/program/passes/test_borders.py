"""Borders: program-level facts of stages, from a graph of layers and its cuts."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.profiling.analytic.synthetic import branching, chain
from hocket.profiling.layer import Tensor
from hocket.profiling.profile import ModelProfile
from hocket.program.passes.borders import StageCut, Tie, batch_tensors, check_cuts, crossing, stage_shapes, ties_of

TWO = (StageCut((0, 1), (0,)), StageCut((2, 3), (1,)))


def tied(profile: ModelProfile, *layers: int) -> ModelProfile:
    """The graph with one more parameter, which the given layers share."""
    return replace(
        profile,
        layers=tuple(
            replace(layer, parameters=(*layer.parameters, "shared")) if i in layers else layer
            for i, layer in enumerate(profile.layers)
        ),
    )


def test_a_chain_cut_in_two() -> None:
    """A chain of two stages has one border, and one bucket for each stage.

    The first stage reads the batch.
    """
    first, second = stage_shapes(chain(4), TWO)
    assert (first.sources, first.targets, first.gradients, first.batch) == ((), (1,), (), True)
    assert (second.sources, second.targets, second.gradients, second.batch) == ((0,), (), (0,), False)
    assert (first.devices, second.devices) == ((0,), (1,))
    assert (first.buckets, second.buckets, first.tied) == (1, 1, ())


def test_a_skip_crosses_to_every_stage_that_reads_it() -> None:
    """A tensor crosses once to every stage that reads it.

    The number of layers that read it there does not matter.
    """
    profile = chain(4, skips=[(0, 2), (0, 3)])
    cuts = (StageCut((0,), (0,)), StageCut((1,), (1,)), StageCut((2, 3), (2,)))
    assert crossing(profile.tensors, cuts) == {(0, 1): (1,), (0, 2): (1,), (1, 2): (2,)}
    assert stage_shapes(profile, cuts)[0].targets == (1, 2)
    assert stage_shapes(profile, cuts)[2].sources == (0, 1)


def test_no_gradient_flows_back_where_none_is_needed() -> None:
    """A border of tensors without gradients sends nothing back."""
    profile = chain(4)
    dry = replace(profile, tensors=tuple(replace(t, gradient=False) for t in profile.tensors))
    assert stage_shapes(dry, TWO)[1].sources == (0,)
    assert stage_shapes(dry, TWO)[1].gradients == ()


def test_batch_tensors_go_where_they_are_read() -> None:
    """Inputs go to the first stage, labels to the last."""
    profile = chain(4)
    labels = Tensor("labels", -1, (3,), profile.tensors[0].size_bytes, gradient=False)
    profile = replace(profile, tensors=(*profile.tensors, labels))
    assert batch_tensors(profile.tensors, TWO) == {0: (0,), 1: (4,)}
    assert [stage.batch for stage in stage_shapes(profile, TWO)] == [True, True]


def test_ties_across_stages_get_a_bucket_of_their_own() -> None:
    """Weights tied across stages get one more bucket on each, after its own buckets.

    Weights tied within a stage need no bucket.
    """
    profile = chain(4)
    assert ties_of(tied(profile, 0, 1).layers, TWO) == ()
    across = tied(profile, 0, 3)
    assert ties_of(across.layers, TWO) == (Tie(("shared",), (0, 1)),)
    cuts = (replace(TWO[0], buckets=((1,), (0,))), TWO[1])
    first, second = stage_shapes(across, cuts)
    assert (first.buckets, first.tied) == (3, ((2, (0, 1)),))
    assert (second.buckets, second.tied) == (2, ((1, (0, 1)),))


@pytest.mark.parametrize(
    ("cuts", "words"),
    [
        ((((0, 1), (1, 2, 3))), "'layer1', which is already in stage 0"),
        ((((0, 1), (3,))), r"no stage for layer 'layer2' \(1 missing\)"),
        ((((2, 3), (0, 1))), "tensor 'layer1.out' from stage 1 back to stage 0"),
        ((((0, 1, 2, 3), ())), "no layers"),
        ((((0, 2), (1, 3))), "back to stage 0"),
    ],
)
def test_cuts_that_are_no_partition(cuts: tuple[tuple[int, ...], ...], words: str) -> None:
    """Cuts that are not a partition are refused.

    The error names the layer or tensor, and the stages.
    """
    with pytest.raises(InputError, match=words):
        check_cuts(chain(4).layers, chain(4).tensors, tuple(StageCut(layers, (s,)) for s, layers in enumerate(cuts)))


@given(n=st.integers(2, 9), seed=st.integers(0, 10**6), data=st.data())
def test_every_tensor_crosses_as_often_as_it_must(n: int, seed: int, data: st.DataObject) -> None:
    """On random graphs, a tensor is exactly in the borders between its readers.

    Sources and targets mirror each other.
    """
    profile = branching(n, seed=seed)
    ends = sorted(data.draw(st.sets(st.integers(1, n - 1), max_size=3)) | {0, n})
    cuts = tuple(StageCut(tuple(range(a, b)), (s,)) for s, (a, b) in enumerate(pairwise(ends)))
    shapes = stage_shapes(profile, cuts)
    for a, first in enumerate(shapes):
        for b, second in enumerate(shapes):
            assert (b in first.targets) == (a in second.sources)
    stage_of = {layer: s for s, cut in enumerate(cuts) for layer in cut.layers}
    borders = crossing(profile.tensors, cuts)
    for index, tensor in enumerate(profile.tensors):
        if tensor.source >= 0:
            readers = {stage_of[target] for target in tensor.targets} - {stage_of[tensor.source]}
            assert {b for (a, b), found in borders.items() if index in found} == readers


def test_tied_buckets_have_one_thread() -> None:
    """Buckets after the listed ones have one communication thread, and none are asked for without replicas."""
    cut = StageCut((0, 1), (0, 1), threads=(3, 2))
    assert [cut.threads_of(bucket) for bucket in range(4)] == [3, 2, 1, 1]
    assert StageCut((0, 1), (0,), threads=(3, 2)).threads_of(0) == 0
    assert StageCut((0, 1), (0, 1)).threads_of(0) == 0
