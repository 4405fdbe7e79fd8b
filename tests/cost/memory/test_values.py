"""Bytes of values, and memory of instructions, computed by hand."""

from dataclasses import replace

import pytest

from hocket.cost.compute import Columns
from hocket.cost.memory.values import PlanMemory
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.layer import Tensor
from hocket.profiling.profile import ModelProfile
from hocket.program.instruction import COMPUTE, Instruction, Kind, Value, ValueKind
from hocket.program.passes.borders import StageCut
from tests.cost.test_compute import tied


def memory(profile: ModelProfile, *cuts: StageCut) -> PlanMemory:
    """Bytes of a profile's stages."""
    return PlanMemory(Columns(profile), cuts)


def two_stages() -> PlanMemory:
    """Two stages of two layers each.

    Layers have 10, 20, 30 and 40 bytes of output and stash, and 100 to 400 bytes of weights.
    """
    profile = chain(4, activation_bytes=[10.0, 20.0, 30.0, 40.0], weights_bytes=[100.0, 200.0, 300.0, 400.0])
    return memory(profile, StageCut((0, 1), (0,)), StageCut((2, 3), (1,), buckets=((3,), (2,))))


def test_bytes_of_each_kind_of_value() -> None:
    """Weights, optimizer state and buckets do not depend on the microbatch size.

    All other values grow with it.
    """
    found = two_stages()
    assert found.value_bytes(Value(ValueKind.WEIGHTS, 0, 3), 2) == 300
    assert found.value_bytes(Value(ValueKind.OPTIMIZER, 1, 0), 2) == 700
    assert found.value_bytes(Value(ValueKind.ACCUMULATOR, 1, 0, 0), 2) == 400
    assert found.value_bytes(Value(ValueKind.REDUCED, 1, 0, 1), 1) == 300
    assert found.value_bytes(Value(ValueKind.ACCUMULATOR, 0, 0, 0), 1) == 300
    assert found.value_bytes(Value(ValueKind.INPUT, 0, 0), 2) == 20
    assert found.value_bytes(Value(ValueKind.ACTIVATION, 0, 0, 1), 2) == 40
    assert found.value_bytes(Value(ValueKind.GRADIENT, 0, 0, 1), 2) == 40
    assert found.value_bytes(Value(ValueKind.STASH, 1, 5), 2) == 140


def test_tensors_without_gradient_send_none_back() -> None:
    """A border activation counts backward only if it has a gradient."""
    profile = chain(2, activation_bytes=[10.0, 20.0])
    mask = Tensor("mask", 0, (1,), (3.0, 6.0, 12.0, 24.0), gradient=False)
    found = memory(replace(profile, tensors=(*profile.tensors, mask)), StageCut((0,), (0,)), StageCut((1,), (1,)))
    assert found.value_bytes(Value(ValueKind.ACTIVATION, 0, 0, 1), 1) == 13
    assert found.value_bytes(Value(ValueKind.GRADIENT, 0, 0, 1), 1) == 10


def test_tied_weights_have_a_bucket_of_their_own() -> None:
    """A parameter shared by two stages counts on both.

    Its gradient goes to the tie's bucket, the last one.
    """
    found = memory(tied(), StageCut((0, 1), (0,)), StageCut((2,), (1,)))
    assert [stage.weights_bytes for stage in found.stages] == [130, 110]
    assert [list(stage.bucket_bytes) for stage in found.stages] == [[30, 100], [10, 100]]
    assert [stage.groups for stage in found.stages] == [((1,), (0,)), ((2,), (2,))]
    whole = memory(tied(), StageCut((0, 1, 2), (0,), buckets=((2,), (0, 1))))
    assert whole.stages[0].weights_bytes == 140
    # Complete only with the embedding, the first layer that uses it.
    assert list(whole.stages[0].bucket_bytes) == [10, 130]


def forward(again: bool = False, stash: bool = True) -> Instruction:
    """The first stage's forward."""
    out = () if again else (Value(ValueKind.ACTIVATION, 0, 0, 1),)
    kept = (Value(ValueKind.STASH, 0, 0),) if stash else ()
    return Instruction(Kind.FORWARD, 0, 0, 0, COMPUTE, writes=(*out, *kept), again=again)


def test_a_forward_leaves_outputs_and_stash() -> None:
    """A forward holds its outputs and stash, plus working memory if that comes on top."""
    found = two_stages()
    assert found.net_bytes(forward(), 1) == 20 + 30
    assert found.hold_bytes(forward(), 1) == 20 + 30
    working = replace(
        chain(2, activation_bytes=[10.0, 20.0]),
        layers=tuple(
            replace(layer, working_bytes=(w, w, w, w))
            for layer, w in zip(chain(2, activation_bytes=[10.0, 20.0]).layers, (50.0, 5.0), strict=True)
        ),
    )
    one = memory(working, StageCut((0, 1), (0,)))
    alone = Instruction(Kind.FORWARD, 0, 0, 0, COMPUTE, writes=(Value(ValueKind.STASH, 0, 0),))
    # The first layer: its stash of 10 and 50 of working memory; the second: 30 and 5.
    assert one.hold_bytes(alone, 1) == 60
    assert one.net_bytes(alone, 1) == 30


def test_a_forward_without_stash_holds_what_passes() -> None:
    """With recomputation, a forward leaves its output only.

    Inside, tensors pass from layer to layer.
    """
    found = two_stages()
    assert found.net_bytes(forward(stash=False), 1) == 20
    # In the second layer: the first layer's output of 10, its own inside of 20, its output of 20 that leaves.
    assert found.hold_bytes(forward(stash=False), 1) == 20 + 10 + 20


def test_recomputation_makes_the_outputs_once_more() -> None:
    """A recomputing forward leaves the stash, and holds the outputs while it runs."""
    found = two_stages()
    assert found.net_bytes(forward(again=True), 1) == 30
    assert found.hold_bytes(forward(again=True), 1) == 30 + 20


def test_a_backward_frees_the_stash_while_it_makes_gradients() -> None:
    """A backward frees the stash while it makes gradients.

    Layer 3 makes 400 bytes with the whole stash. Layer 2 makes 300 more when 40 bytes of it are gone.
    """
    found = two_stages()
    sums = tuple(Value(ValueKind.ACCUMULATOR, 1, 0, b) for b in range(2))
    freed = (Value(ValueKind.ACTIVATION, 0, 0, 1), Value(ValueKind.STASH, 1, 0))
    first = Instruction(Kind.BACKWARD, 1, 0, 1, COMPUTE, freed, (Value(ValueKind.GRADIENT, 0, 0, 1), *sums), freed)
    assert found.hold_bytes(first, 1) == 20 + max(400, 700 - 40)
    assert found.net_bytes(first, 1) == 20 + 700 - 20 - 70
    # The next one continues the sums in place.
    later = replace(
        first,
        index=1,
        writes=(Value(ValueKind.GRADIENT, 0, 1, 1), *(v._replace(index=1) for v in sums)),
        frees=(Value(ValueKind.ACTIVATION, 0, 1, 1), Value(ValueKind.STASH, 1, 1), *sums),
    )
    assert found.hold_bytes(later, 1) == 20
    assert found.net_bytes(later, 1) == 20 - 20 - 70


def test_a_step_is_in_place_when_it_frees_what_it_replaces() -> None:
    """An update that frees the old version needs no memory.

    If it must keep the old version, it makes a second copy.
    """
    found = two_stages()
    sums, old, state = (
        Value(ValueKind.ACCUMULATOR, 0, 3, 0),
        Value(ValueKind.WEIGHTS, 0, 0),
        Value(ValueKind.OPTIMIZER, 0, 0),
    )
    new = (Value(ValueKind.WEIGHTS, 0, 1), Value(ValueKind.OPTIMIZER, 0, 1))
    step = Instruction(Kind.STEP, 0, 0, 0, COMPUTE, (sums, old, state), new, (sums, old, state))
    assert (found.hold_bytes(step, 1), found.net_bytes(step, 1)) == (0, -300)
    keeping = replace(step, frees=(sums, state))
    assert (found.hold_bytes(keeping, 1), found.net_bytes(keeping, 1)) == (300, 0)


def test_transfers_move_bytes() -> None:
    """Sends free bytes, receives add bytes, and an all-reduce works in place."""
    found = two_stages()
    value = Value(ValueKind.ACTIVATION, 0, 0, 1)
    send = Instruction(Kind.SEND, 0, 0, 0, "send>1", (value,), (), (value,), peer=1)
    receive = Instruction(Kind.RECEIVE, 0, 0, 1, "receive<0", writes=(value,), peer=0)
    assert (found.net_bytes(send, 1), found.net_bytes(receive, 1)) == (-20, 20)
    bucket, reduced = Value(ValueKind.ACCUMULATOR, 1, 0, 0), Value(ValueKind.REDUCED, 1, 0, 0)
    reduce = Instruction(Kind.ALL_REDUCE, 1, 0, 1, "reduce@0,1", (bucket,), (reduced,), (bucket,), group=(0, 1))
    assert found.net_bytes(reduce, 1) == pytest.approx(0)


def test_an_activation_that_the_stash_keeps_takes_nothing_where_it_was_made() -> None:
    """An activation that the stash keeps as well costs nothing where it was made.

    On the receiving device it counts in full.
    """
    plain = chain(3, activation_bytes=[10.0, 20.0, 30.0])
    kept = tuple(replace(t, kept_by=(1, 2) if t.source == 1 else ()) for t in plain.tensors)
    cuts = StageCut((0, 1), (0,)), StageCut((2,), (1,))
    value = Value(ValueKind.ACTIVATION, 0, 0, 1)
    found = memory(replace(plain, tensors=kept), *cuts)
    assert (found.held_bytes(value, 0, 1), found.held_bytes(value, 1, 1)) == (0, 20)
    assert found.net_bytes(forward(), 1) == 30
    again = memory(replace(plain, tensors=kept), replace(cuts[0], recompute=True), cuts[1])
    assert again.held_bytes(value, 0, 1) == 20
    assert memory(plain, *cuts).held_bytes(value, 0, 1) == 20


def test_several_tensors_are_packed_while_they_are_sent() -> None:
    """One tensor is sent as it is; two share one message with aligned parts."""
    profile = chain(2, activation_bytes=[128.0, 20.0])
    cuts = StageCut((0,), (0,)), StageCut((1,), (1,))
    value = Value(ValueKind.ACTIVATION, 0, 0, 1)
    assert memory(profile, *cuts).held_bytes(value, 0, 1) == 128
    second = Tensor("second", 0, (1,), (64.0, 128.0, 256.0, 512.0))
    two = memory(replace(profile, tensors=(*profile.tensors, second)), *cuts)
    assert two.held_bytes(value, 1, 1) == 128 + 64 + 2 * 64
    assert two.held_bytes(value, 0, 1) == 128 + 64 + 2 * 64  # the tensors themselves are gone when they are packed
    kept = replace(profile, tensors=tuple(replace(t, kept_by=(0,)) for t in (*profile.tensors, second)))
    assert memory(kept, *cuts).held_bytes(value, 0, 1) == 128 + 64 + 2 * 64  # what the stash keeps is there twice


def test_a_tensor_that_does_not_lie_side_by_side_is_copied_to_be_sent() -> None:
    """A tensor that is not contiguous is copied into a message.

    The message exists in addition to the stash. While it is made, the tensor itself exists as well.
    """
    profile = chain(2, activation_bytes=[128.0, 20.0])
    cuts = StageCut((0,), (0,)), StageCut((1,), (1,))
    value = Value(ValueKind.ACTIVATION, 0, 0, 1)
    spread = memory(replace(profile, tensors=tuple(replace(t, dense=False) for t in profile.tensors)), *cuts)
    kept = replace(profile, tensors=tuple(replace(t, dense=False, kept_by=(0,)) for t in profile.tensors))
    assert spread.held_bytes(value, 0, 1) == memory(kept, *cuts).held_bytes(value, 0, 1) == 128
    stash = spread.value_bytes(Value(ValueKind.STASH, 0, 0), 1)
    assert spread.hold_bytes(forward(), 1) == stash + 128 + 128
    assert memory(profile, *cuts).hold_bytes(forward(), 1) == stash + 128


def test_flat_buckets_are_taken_whole_and_kept() -> None:
    """Buckets of replicas are pooled, with gaps between gradients.

    They exist before a backward makes the first gradient.
    """
    profile = tied()
    cut = StageCut((0, 1, 2), (0, 1), buckets=((2,), (0, 1)))
    found = memory(profile, cut)
    value = Value(ValueKind.ACCUMULATOR, 0, 0, 1)
    assert found.pooled(value)
    assert found.pooled(Value(ValueKind.WEIGHTS, 0, 0))
    assert not found.pooled(Value(ValueKind.STASH, 0, 0))
    assert found.held_bytes(value, 0, 1) == found.value_bytes(value, 1) + 64 * 2  # two parameters
    alone = memory(profile, replace(cut, devices=(0,)))
    assert not alone.pooled(value)
    assert alone.held_bytes(value, 0, 1) == alone.value_bytes(value, 1)


def test_a_step_needs_temporary_memory() -> None:
    """A step needs temporary memory of the largest layer, or of all layers.

    It is that of all layers if the optimizer steps all parameters together.
    """
    plain = chain(2, weights_bytes=[100.0, 200.0])
    layers = tuple(replace(layer, step_bytes=2 * layer.weights_bytes) for layer in plain.layers)
    for together, expected in ((False, 400), (True, 600)):
        found = memory(replace(plain, layers=layers, step_together=together), StageCut((0, 1), (0,)))
        state = Value(ValueKind.WEIGHTS, 0, 0), Value(ValueKind.OPTIMIZER, 0, 0)
        new = Value(ValueKind.WEIGHTS, 0, 1), Value(ValueKind.OPTIMIZER, 0, 1)
        assert found.hold_bytes(Instruction(Kind.STEP, 0, 0, 0, COMPUTE, state, new, state), 1) == expected
