"""Formulas of swap volumes equal the counted bytes, and the paper's for weights."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hocket.cost.swapping.volumes import (
    Scheme,
    SwapKind,
    SwapLayer,
    data_parallel,
    harmony_data,
    harmony_pipeline,
    pipeline_parallel,
    swap_volumes,
)
from hocket.errors import InputError
from tests.cost.helpers.swap_counting import count
from tests.tiers import examples

SIZES = some.integers(0, 50).map(float)
LAYERS = some.lists(some.builds(SwapLayer, SIZES, SIZES, SIZES, SIZES, SIZES), min_size=1, max_size=7)
FLAGS = some.booleans()


@given(
    LAYERS,
    some.integers(1, 3),
    some.integers(1, 3),
    FLAGS,
    FLAGS,
    FLAGS,
    FLAGS,
    FLAGS,
    FLAGS,
    some.sets(some.integers(1, 6)),
    some.sets(some.integers(1, 6)),
)
@examples(300)
def test_formulas_equal_the_count(
    layers: list[SwapLayer], devices: int, microbatches: int, pipeline: bool, in_turn: bool, grouped: bool,
    just_in_time: bool, peer: bool, clean: bool, packs: set[int], ahead: set[int],
) -> None:  # fmt: skip
    """Formulas equal counted bytes for every combination of switches.

    This holds for any layers and packs, also different ones forward and backward, for every kind, to hosts and to
    peers.
    """
    firsts, forward = ((0, *sorted(k for k in cuts if k < len(layers))) for cuts in (packs, ahead))
    for chosen, other in (((), ()), (firsts, ()), (firsts, () if pipeline else forward)):
        scheme = Scheme(devices, microbatches, pipeline, in_turn, grouped, just_in_time, peer, chosen, clean, other)
        assert swap_volumes(layers, scheme) == count(layers, scheme)


@pytest.mark.parametrize(("devices", "m"), [(1, 1), (2, 3), (4, 8)])
def test_weights_as_printed(devices: int, m: int) -> None:
    """Weights are as printed in the paper.

    (4m + 2)N|W| for data parallelism, 3N|W| for Harmony-DP, 3|W| for Harmony-PP (Harmony, HotOS 2021, section 3).
    """
    layers = [SwapLayer(w, 1, 1, 1, 1) for w in (5.0, 7.0, 11.0, 2.0)]
    for scheme, times in (
        (data_parallel(devices, m), (4 * m + 2) * devices),
        (harmony_data(devices, m), 3 * devices),
        (harmony_pipeline(devices, m), 3),
        (pipeline_parallel(devices, m), 4 * m * devices + 2),
    ):
        assert count(layers, scheme)[SwapKind.WEIGHTS] == (times * 25.0, 0.0)


def test_least_recently_used_keeps_what_turns_share() -> None:
    """LRU in data parallelism swaps 4m of a layer's weights less than printed.

    A memory keeps the values that its next operation uses.
    """
    layers = [SwapLayer(1, 1, 1, 1, 1)] * 5
    for m in (1, 2, 6):
        scheme = data_parallel(2, m)
        assert count(layers, scheme, keeps=True)[SwapKind.WEIGHTS].host_bytes == 2 * ((4 * m + 2) * 5 - 4 * m)


# Of four equal layers, two devices and two microbatches each: bytes to and from the host of weights, gradients, optimizer state,
# stash, activations, their gradients; and from device to device. The table of docs/explanation/harmony.md.
TABLE = {
    "data parallelism": (data_parallel(2, 2), (80, 32, 16, 32, 28, 24), 0),
    "Harmony-DP": (harmony_data(2, 2), (24, 0, 16, 32, 28, 24), 0),
    "pipeline": (pipeline_parallel(2, 2), (72, 32, 8, 32, 20, 16), 8),
    "Harmony-PP": (harmony_pipeline(2, 2), (12, 0, 8, 32, 4, 0), 24),
    "without grouping": (replace(harmony_pipeline(2, 2), grouped=False), (36, 24, 8, 32, 4, 0), 24),
    "without just-in-time updates": (replace(harmony_pipeline(2, 2), just_in_time=False), (16, 8, 8, 32, 4, 0), 24),
    "without peers": (replace(harmony_pipeline(2, 2), peer=False), (12, 0, 8, 32, 28, 24), 0),
    "with packs of two layers": (harmony_pipeline(2, 2, (0, 2)), (12, 0, 8, 32, 4, 0), 8),
    "Harmony-DP, packs of two": (harmony_data(2, 2, (0, 2)), (24, 0, 16, 32, 12, 8), 0),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_each_optimisation_saves(name: str) -> None:
    """Savings of each optimisation, counted for the documentation's example."""
    scheme, host, peers = TABLE[name]
    counted = count([SwapLayer(1, 1, 1, 1, 1)] * 4, scheme)
    assert tuple(counted[kind].host_bytes for kind in SwapKind) == host
    assert sum(volume.peer_bytes for volume in counted.values()) == peers


def test_packs_are_checked() -> None:
    """Packs begin at the first layer; forward tasks are for data parallelism only."""
    for scheme in (Scheme(1, 1, packs=(1,)), Scheme(1, 1, forward=(1,)), Scheme(2, 1, pipeline=True, forward=(0,))):
        with pytest.raises(InputError):
            swap_volumes([SwapLayer(1, 1, 1, 1, 1)] * 2, scheme)
