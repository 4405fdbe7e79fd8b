"""Candidates of strategies: whole models on real devices, independent of links.

Variants that save memory are offered only as a fallback.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.profile import ModelProfile
from hocket.strategies.base.search_space import (
    MAX_FORWARDS,
    MAX_MICROBATCHES,
    Candidate,
    SearchSpace,
    interleavings,
    partitioned,
    period_forwards,
    pipelines,
    recomputing,
    replicas,
)
from tests.tiers import examples

PROFILE = chain(6, forward_s=[1.0, 2.0, 1.0, 3.0, 1.0, 1.0], microbatch_sizes=(1, 2), device_type="cpu-core")
OFFERS: dict[str, Callable[[SearchSpace], Iterator[Candidate]]] = {
    "replicas": replicas,
    "pipelines": pipelines,
    "pipelines that save": lambda space: pipelines(space, recompute=True),
    "interleavings": interleavings,
    "partitioned": partitioned,
}


def cluster(*widths: int, rate: float = 1e9) -> Cluster:
    """Levels of these widths, the outer ones slower."""
    levels = tuple(Level(f"level{k}", width, rate / 4**k) for k, width in enumerate(widths))
    return Cluster("c", levels, "cpu-core")


def space(profile: ModelProfile = PROFILE, *widths: int, batch_size: int = 8) -> SearchSpace:
    """Search space of a profile and a batch, on four devices by default."""
    return SearchSpace(profile, cluster(*(widths or (4,))), batch_size)


@pytest.mark.parametrize("name", list(OFFERS))
@examples(15)
@given(
    layers=st.integers(1, 7), widths=st.sampled_from([(1,), (2,), (5,), (2, 2), (3, 2)]), batch_size=st.integers(1, 9)
)
def test_a_choice_is_the_whole_model_on_devices_that_are_there(
    name: str, layers: int, widths: tuple[int, ...], batch_size: int
) -> None:
    """Candidates have every layer once and in order, on devices of the cluster.

    Each device occurs once in a stage, buckets have all layers, and no candidate occurs twice.
    """
    offered = list(OFFERS[name](space(chain(layers, device_type="cpu-core"), *widths, batch_size=batch_size)))
    devices = cluster(*widths).devices
    for choice in offered:
        assert [i for stage in choice.stages for i in stage.layers] == list(range(layers))
        assert 1 <= choice.microbatch_size <= batch_size
        for stage in choice.stages:
            assert len(set(stage.devices)) == len(stage.devices) >= 1
            assert set(stage.devices) <= set(range(devices))
            if stage.buckets:
                assert sorted(i for bucket in stage.buckets for i in bucket) == list(stage.layers)
            else:
                assert len(stage.devices) == 1
    seen = [(c.stages, c.microbatch_size, tuple(c.options.items())) for c in offered]
    assert len(set(seen)) == len(seen)


def test_every_depth_and_width() -> None:
    """Six devices and six layers: all depths p >= 2 and widths d with p * d <= 6.

    This holds for both microbatch sizes.
    """
    offered = pipelines(space(PROFILE, 6, batch_size=12))
    shapes = {(len(c.stages), len(c.stages[0].devices), c.microbatch_size) for c in offered}
    assert shapes == {(p, d, b) for p in range(2, 7) for d in range(1, 4) for b in (1, 2) if p * d <= 6}


def test_replicas_stand_side_by_side() -> None:
    """Stage s has the devices from s * d on, so that all-reduces stay inside servers."""
    for choice in pipelines(space(PROFILE, 2, 2)):
        width = len(choice.stages[0].devices)
        assert [d for stage in choice.stages for d in stage.devices] == list(range(width * len(choice.stages)))


@given(st.sampled_from([1e3, 1e6, 1e9, 1e12]), st.sampled_from([(4,), (2, 2)]))
def test_the_same_is_offered_whatever_the_links(rate: float, widths: tuple[int, ...]) -> None:
    """Pipelines, replicas and interleavings do not depend on how fast the links are."""
    here = space(PROFILE, *widths)
    there = replace(here, cluster=cluster(*widths, rate=rate))
    for offer in (replicas, pipelines, interleavings):
        assert list(offer(here)) == list(offer(there))


def test_cuts_for_dear_and_for_cheap_links() -> None:
    """A wide boundary in the middle: one cut avoids it, another balances the compute."""
    profile = chain(4, activation_bytes=[1e6, 1e9, 1e6, 1e6], microbatch_sizes=(1,), device_type="cpu-core")
    cuts = {choice.stages[0].layers for choice in pipelines(space(profile, 2))}
    assert {(0,), (0, 1)} <= cuts


def test_thrift_is_the_same_in_less_memory() -> None:
    """Variants recompute more and more stages, or have ever fewer inputs in flight.

    No variant that saves memory is a candidate by itself.
    """
    for offer in (replicas, OFFERS["pipelines that save"]):
        for choice in offer(space()):
            count = len(choice.stages)
            again = [[stage.recompute for stage in one.stages] for one in choice.thriftier]
            assert again == [[s <= k for s in range(count)] for k in range(count)]
            assert replace(choice.thriftier[-1], thriftier=choice.thriftier) == recomputing(choice)
            assert not any(stage.recompute for stage in choice.stages)
    for choice in partitioned(space()):
        assert [c.options["in_flight"] for c in choice.thriftier] == list(range(len(choice.stages) - 1, 0, -1))
        assert all(c.stages == choice.stages for c in choice.thriftier)
        assert "in_flight" not in choice.options


def test_interleavings_go_round_the_devices() -> None:
    """Stage s is on the devices of stage s mod p, in v passes.

    Microbatches are divisible by p x d.
    """
    offered = list(interleavings(space(chain(8, device_type="cpu-core"), 4)))
    assert {len(c.stages) // len({s.devices for s in c.stages}) for c in offered} == {2, 4}
    for choice in offered:
        groups = list(dict.fromkeys(stage.devices for stage in choice.stages))
        assert [stage.devices for stage in choice.stages] == groups * (len(choice.stages) // len(groups))
        assert choice.microbatches % sum(map(len, groups)) == 0


def test_replicas_without_common_factors() -> None:
    """A partition with too long a period is followed by one with a short period."""
    profile = chain(
        12,
        forward_s=[1.0, 2.7, 1.9, 0.3, 4.1, 1.3, 0.9, 2.2, 3.1, 0.7, 1.7, 2.9],
        weights_bytes=1.0,
        activation_bytes=1.0,
        microbatch_sizes=(1,),
        device_type="cpu-core",
    )
    offered = list(partitioned(space(profile, 64, batch_size=64)))
    assert any(period_forwards(choice.stages) <= MAX_FORWARDS for choice in offered)
    assert period_forwards(offered[0].stages, 7) % 7 == 0


def test_microbatch_sizes() -> None:
    """Microbatch sizes are those of the profile that fit the batch.

    They give at most `MAX_MICROBATCHES` microbatches, except the largest if all give more. If no size fits, the whole
    batch is one microbatch.
    """
    profile = chain(2, microbatch_sizes=(2, 4, 8), device_type="cpu-core")
    assert space(profile, batch_size=4).sizes == (2, 4)
    assert space(profile, batch_size=4 * MAX_MICROBATCHES).sizes == (4, 8)
    assert space(profile, batch_size=8 * MAX_MICROBATCHES + 1).sizes == (8,)
    assert space(profile, batch_size=100 * MAX_MICROBATCHES).sizes == (8,)
    assert space(profile, batch_size=1).sizes == (1,)


def test_given_microbatch_sizes_are_kept() -> None:
    """Sizes that the user gives are tried, whatever the number of microbatches."""
    profile = chain(2, microbatch_sizes=(1, 2, 4, 8), device_type="cpu-core")
    assert SearchSpace(profile, cluster(2), 8, (3,)).sizes == (3,)
    assert SearchSpace(profile, cluster(2), 2 * MAX_MICROBATCHES, (1, 2)).sizes == (1, 2)


@pytest.mark.parametrize(
    ("batch_size", "sizes", "words"),
    [
        (0, (), "batch_size: found 0"),
        (8, (0,), "microbatch_sizes: found 0"),
        (8, (9,), "found 9; expected a number from 1 to 8"),
    ],
)
def test_sizes_that_make_no_sense(batch_size: int, sizes: tuple[int, ...], words: str) -> None:
    """Invalid sizes are refused, and the message names the place."""
    with pytest.raises(InputError, match=words):
        SearchSpace(PROFILE, cluster(2), batch_size, sizes)
