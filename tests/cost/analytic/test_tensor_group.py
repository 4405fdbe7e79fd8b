"""Profiles of tensor-parallel groups: seconds of ranks, with their reductions."""

import pytest

from hocket.cost.analytic.tensor_group import of_group
from hocket.cost.analytic.transformer import BlockExecution, analytic
from hocket.hardware import catalog
from hocket.hardware.change import Change
from hocket.hardware.cluster import Cluster, Level
from hocket.hardware.groups import grouped
from hocket.profiling.analytic.transformer import Transformer

GPT = Transformer("gpt", 2, 512, 8, 1024, 128)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_members_wait_for_what_they_reduce(recompute: str) -> None:
    """Ranks wait for their reductions.

    These are two of a microbatch's activations for each block and direction, and two more if the forward is recomputed.
    Everything else stays the same.
    """
    a100 = catalog.device_type("a100-80gb")
    group = grouped(Cluster("server", (Level("server", 4, 100e9, 1e-6),), "a100-80gb"), 4)
    own = analytic(GPT, a100, BlockExecution(4, recompute))
    whole = of_group(own, group)
    for k, size in enumerate(own.microbatch_sizes):
        each = group.all_reduce_s(2 * size * GPT.sequence * GPT.hidden)
        more = [
            (b.forward_s[k] - a.forward_s[k], b.backward_s[k] - a.backward_s[k])
            for a, b in zip(own.layers, whole.layers, strict=True)
        ]
        block = pytest.approx((2 * each, (4 if recompute == "full" else 2) * each))
        assert more == [pytest.approx((each, 0)), block, block, pytest.approx((0, each))]
    assert [layer.stash_bytes for layer in own.layers] == [layer.stash_bytes for layer in whole.layers]


def test_slices_are_gathered_and_scattered() -> None:
    """With sequence parallelism, ranks wait for gathers and scatters.

    A block has four halves of reductions in the forward. The backward has as many, two gathers of the inputs of
    columns, and the norms' gradients.
    """
    a100 = catalog.device_type("a100-80gb")
    group = grouped(Cluster("server", (Level("server", 4, 100e9, 1e-6),), "a100-80gb"), 4)
    own = analytic(GPT, a100, BlockExecution(4, sequence_parallel=True))
    for k, size in enumerate(own.microbatch_sizes):
        each = group.all_reduce_s(2 * size * GPT.sequence * GPT.hidden)
        half, norm = each / 2, group.all_reduce_s(2 * 2 * GPT.hidden)
        more = [
            (b.forward_s[k] - a.forward_s[k], b.backward_s[k] - a.backward_s[k])
            for a, b in zip(own.layers, of_group(own, group).layers, strict=True)
        ]
        block = pytest.approx((4 * half, 6 * half + 2 * norm))
        assert more == [pytest.approx((each, half)), block, block, pytest.approx((half, each))]


def test_a_device_alone_reduces_nothing() -> None:
    """A single device has the same profile."""
    own = analytic(GPT, catalog.device_type("a100-80gb"))
    assert of_group(own, grouped(Cluster("server", (Level("server", 4, 100e9),), "a100-80gb"), 1)) is own


def test_other_devices_exchange_as_quickly() -> None:
    """Unknown device types scale computation, but not reductions."""
    a100 = catalog.device_type("a100-80gb")
    server = Cluster("server", (Level("server", 4, 100e9, 1e-6),), "a100-80gb")
    group = grouped(Change(rate=2.0).of(server), 4)
    own = analytic(GPT, a100, BlockExecution(4))
    whole = of_group(own, grouped(server, 4))
    for plain, here, layer in zip(own.layers, whole.layers, of_group(own, group).layers, strict=True):
        there = layer.elsewhere[0]
        assert there.device_type == group.cluster.device_type
        for k in range(len(own.microbatch_sizes)):
            for way in ("forward_s", "backward_s"):
                alone, with_others, quicker = (getattr(one, way)[k] for one in (plain, here, there))
                assert quicker == pytest.approx(alone / 2 + (with_others - alone))
