"""Memory of a forward and a backward on their way through a stage's layers.

Expected figures are computed by hand.
"""

from dataclasses import replace

import numpy as np
import pytest

from hocket.cost.compute import Columns
from hocket.cost.memory.stage_walk import LOSS_BYTES, Walk
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.profile import ModelProfile


def known() -> ModelProfile:
    """Three layers with outputs of 10, 20 and 30 bytes.

    The first output is kept by the layer that reads it, the second by no layer. Layers keep 1, 2 and 3 bytes inside. A
    backward takes 5, 7 and 9 bytes in a layer, and 8 in the last one when it makes its gradients of 4 bytes.
    """
    plain = chain(3, activation_bytes=[10.0, 20.0, 30.0], weights_bytes=[0.0, 0.0, 4.0])
    layers = tuple(
        replace(layer, stash_bytes=(s,) * 4, backward_bytes=(b,) * 4, fresh_bytes=(f,) * 4)
        for layer, s, b, f in zip(plain.layers, (11.0, 2.0, 3.0), (5.0, 7.0, 9.0), (5.0, 7.0, 13.0), strict=True)
    )
    kept = {0: (1,)}
    tensors = tuple(
        replace(t, size_bytes=(t.size_bytes[0],) * 4, kept_by=kept.get(t.source, ())) for t in plain.tensors
    )
    return replace(plain, layers=layers, tensors=tensors)


def walk(profile: ModelProfile, layers: tuple[int, ...]) -> Walk:
    """Walk over some layers at one sample, with one bucket."""
    made = np.array([[profile.layers[i].gradients_bytes] for i in layers])
    return Walk.of(Columns(profile), 1, layers, made)


def test_a_tensor_belongs_to_the_stage_whose_layers_keep_it() -> None:
    """A tensor belongs to the stash of a stage with layers that keep it.

    The stash of layers 0 and 1 has the tensor between them. If they are separate stages, no stash has it.
    """
    assert walk(known(), (0, 1)).stash_bytes == 1 + 10 + 2
    assert walk(known(), (0,)).stash_bytes == 1
    assert walk(known(), (1, 2)).stash_bytes == 2 + 3


def test_a_backward_frees_what_is_kept_when_its_last_keeper_is_done() -> None:
    """A kept tensor is freed after the backward of its last keeper.

    In layer 1 the tensor that it keeps still exists. In layer 0 it is gone, and its gradient exists.
    """
    found = walk(known(), (0, 1))
    stash = 13
    in_layer_1 = 1 + 10 + 7
    in_layer_0 = 10 + 5
    assert found.backward_peak([], 0) == max(in_layer_1, in_layer_0) - stash


def test_gradients_that_are_made_are_counted_once() -> None:
    """New weight gradients count once.

    In the layer that makes them they are part of its backward's bytes; in the layers before it they exist.
    """
    found = walk(known(), (1, 2))
    first = 2 + 13  # in layer 2, with layer 1's inside
    then = (
        4 + 20 + 10 + 7 + LOSS_BYTES
    )  # gradients of layer 2; of its input; of layer 1's input, which goes to another stage; layer 1; of the loss
    assert found.backward_peak([0], 10) == max(first, then) - 5
    later = max(2 + 9, 20 + 10 + 7 + LOSS_BYTES)
    assert found.backward_peak([], 10) == later - 5


def branching() -> ModelProfile:
    """The chain above, with the first output read by layers 1 and 2 and kept by none."""
    profile = known()
    targets = {0: (1, 2)}
    tensors = tuple(replace(t, targets=targets.get(t.source, t.targets), kept_by=()) for t in profile.tensors)
    layers = (replace(profile.layers[0], stash_bytes=(1.0,) * 4), *profile.layers[1:])
    return replace(profile, tensors=tensors, layers=layers)


def test_gradients_that_meet_are_added_out_of_place() -> None:
    """Gradients that meet are added out of place.

    In layer 1, the gradient from layer 2, its own, and their sum exist; its output's gradient is gone.
    """
    found = walk(branching(), (0, 1, 2))
    first = 3 + 3 + 9
    met = 1 + 3 * 10
    assert found.backward_peak([], 0) == max(first, LOSS_BYTES + max(1 + 30 + 7, met, 10 + 5)) - 6
    assert found.joined.tolist() == [0, 2 * 10 - 20, 0]


def test_a_gradient_from_another_stage_meets_those_of_this_one() -> None:
    """A gradient from another stage is added to those of this stage.

    With one other reader, the sum of both is new. With two, it exists before any layer's backward.
    """
    profile = branching()
    made, first = np.zeros((2, 1)), next(i for i, t in enumerate(profile.tensors) if t.source == 0)
    alone = Walk.of(Columns(profile), 1, (0, 1), made)
    one = Walk.of(Columns(profile), 1, (0, 1), made, {first: 1})
    two = Walk.of(Columns(profile), 1, (0, 1), made, {first: 2})
    assert alone.joined.tolist() == [0, 0]
    assert one.joined.tolist() == two.joined.tolist() == [0, 10 + 10]
    assert two.backward_peak([], 0) == one.backward_peak([], 0) + 10


def test_a_forward_holds_what_passes_and_what_it_keeps() -> None:
    """A forward holds passing tensors and tensors that it keeps.

    A tensor that no layer keeps is gone after its reader. Without a stash none of them stays.
    """
    profile = known()
    assert walk(profile, (0, 1)).forward_peak(kept=True, leaves=True) == (1 + 10) + (2 + 20)
    assert walk(profile, (1, 2)).forward_peak(kept=True, leaves=False) == 2 + 20 + 3
    assert walk(profile, (0, 1, 2)).forward_peak(kept=False, leaves=False) == max(1 + 10, 10 + 2 + 20, 20 + 3)


@pytest.mark.parametrize("kept", [True, False])
def test_what_a_profile_does_not_know_is_not_guessed(kept: bool) -> None:
    """Without measured backward bytes, a layer's stash is its own.

    Gradients inside a stage are then unknown.
    """
    profile = chain(2, activation_bytes=[10.0, 20.0])
    found = walk(profile, (0, 1))
    assert found.stash_bytes == 30
    assert found.backward_peak([], 0) == 0
    assert found.forward_peak(kept, leaves=False) == 30


def test_parts_of_gradients_wait_for_each_other() -> None:
    """Parts of a gradient of several layers wait for each other.

    Layers 0 and 2 share a weight with an accumulator: one part waits during the backward of layer 1.
    """
    profile, none = known(), np.zeros((3, 1))
    waiting = np.array([[8.0], [4.0], [0.0]])
    without = Walk.of(Columns(profile), 1, (0, 1, 2), none)
    found = Walk.of(Columns(profile), 1, (0, 1, 2), none, waiting=waiting)
    assert found.backward_peak([0], 0) == without.backward_peak([0], 0)
    assert 4 <= found.backward_peak([], 0) - without.backward_peak([], 0) <= 8


def test_a_gradient_that_is_a_part_lives_as_long_as_the_others() -> None:
    """A gradient that is a part of a larger tensor lives as long as the other parts.

    That of the second tensor stays until the backward of the first layer.
    """
    profile = known()
    second = next(i for i, t in enumerate(profile.tensors) if t.source == 1)
    tensors = list(profile.tensors)
    tensors[second] = replace(tensors[second], gradient_until=0)
    parts = replace(profile, tensors=tuple(tensors))
    assert (20.0, 1, 1) in walk(profile, (0, 1, 2)).gradients
    assert (20.0, 0, 1) in walk(parts, (0, 1, 2)).gradients
    # From a stage that has not the other part it is as long as the stage.
    assert (20.0, 0, 0) in walk(replace(parts, tensors=tuple(tensors)), (1, 2)).gradients
    assert ModelProfile.from_json(parts.to_json()) == parts
    assert "gradient_until" not in profile.to_json()
