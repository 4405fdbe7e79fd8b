"""Transfers alone on their links."""

from dataclasses import replace

import pytest

from hocket.cost.transfer import collective, message, ring_bytes, ring_hops, swap
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level, Link
from hocket.hardware.device_type import DeviceType
from hocket.hardware.links import ring_all_reduce_s
from hocket.program.instruction import Kind

CLUSTER = Cluster("two", (Level("server", 2, 100.0, 0.5), Level("cluster", 2, 10.0, 2.0)), "cpu-core")


def test_a_message_goes_over_the_nearest_common_level() -> None:
    """A message has the figures of the nearest common level."""
    assert message(CLUSTER, 0, 1, 200.0) == (0.5, 2.0)
    assert message(CLUSTER, 1, 2, 200.0) == (2.0, 20.0)


def test_the_senders_part_of_the_latency_counts_once() -> None:
    """The sender's compute lane spends `post_s`, so the message itself takes that much less; never less than nothing."""
    assert message(replace(CLUSTER, post_s=0.25), 0, 1, 200.0) == (0.25, 2.0)
    assert message(replace(CLUSTER, post_s=0.75), 0, 1, 200.0) == (0.0, 2.0)


@pytest.mark.parametrize("group", [(0, 1), (0, 2), (0, 1, 2, 3)])
def test_an_all_reduce_is_the_ring_of_the_links_file(group: tuple[int, ...]) -> None:
    """Latency and flow add up to `ring_all_reduce_s` for the level of the group."""
    link = CLUSTER.levels[CLUSTER.level_of(group)].link
    found = collective(CLUSTER, Kind.ALL_REDUCE, group, 120.0)
    assert sum(found) == pytest.approx(ring_all_reduce_s(len(group), 120.0, link))


def test_half_collectives_take_half() -> None:
    """An all-reduce is a reduce-scatter and an all-gather; one rank takes no time."""
    whole = collective(CLUSTER, Kind.ALL_REDUCE, (0, 1, 2), 90.0)
    halves = [collective(CLUSTER, kind, (0, 1, 2), 90.0) for kind in (Kind.REDUCE_SCATTER, Kind.ALL_GATHER)]
    assert sum(whole) == pytest.approx(sum(map(sum, halves)))
    assert collective(CLUSTER, Kind.ALL_REDUCE, (3,), 90.0) == (0.0, 0.0)
    assert ring_bytes(Kind.ALL_REDUCE, 4, 100.0) == 150.0


def test_measured_all_reduce_figures() -> None:
    """A level's own all-reduce link is used before its point-to-point figures."""
    own = Cluster("own", (Level("server", 2, 100.0, 0.5, all_reduce=Link(50.0, 1.0)),), "cpu-core")
    assert collective(own, Kind.ALL_REDUCE, (0, 1), 100.0) == (2.0, 2.0)


def test_rings_side_by_side() -> None:
    """Rings run in parallel if the devices of a server have separate cards.

    The links inside a server limit them. There is one ring over a shared card.
    """

    def flow_s(group: tuple[int, ...], inside: float, shared: bool) -> float:
        levels = (Level("server", 4, inside, shared=False), Level("cluster", 2, 10.0, shared=shared))
        return collective(Cluster("two", levels, "cpu-core"), Kind.ALL_REDUCE, group, 80.0).flow_s

    apart, all_of_two = (0, 4), tuple(range(8))
    assert flow_s(apart, 1000.0, False) == flow_s(apart, 1000.0, True) == 8.0
    whole = ring_bytes(Kind.ALL_REDUCE, 8, 80.0)
    assert flow_s(all_of_two, 1000.0, True) == whole / 10
    assert flow_s(all_of_two, 1000.0, False) == whole / 40
    assert flow_s(all_of_two, 30.0, False) == whole / 30
    assert flow_s((0, 1, 2, 3, 4, 5), 1000.0, False) == ring_bytes(Kind.ALL_REDUCE, 6, 80.0) / 20
    assert flow_s(all_of_two, 5.0, False) == whole / 10


def test_ring_hops() -> None:
    """Every rank sends to the next and the last to the first; duplicates are refused."""
    assert ring_hops((1, 4, 6)) == ((1, 4), (4, 6), (6, 1))
    assert ring_hops((1,)) == ()
    with pytest.raises(InputError):
        ring_hops((1, 1))


def test_a_swap_takes_the_host_link() -> None:
    """A swap uses the device type's own host link."""
    kind = DeviceType("own", 1e9, {}, 1e9, host_bandwidth_bytes_per_s=10.0, host_latency_s=0.25)
    cluster = Cluster("one", (Level("server", 1, 1.0),), "own", types=(kind,))
    assert swap(cluster, 0, 30.0) == (0.25, 3.0)


def test_measured_halves() -> None:
    """Measured reduce-scatters and gathers are shares of the all-reduce.

    None is faster than a ring's half.
    """
    ring = Level("server", 2, 100.0, 0.5, all_reduce=Link(50.0, 1.0))
    own = Cluster("own", (replace(ring, reduce_scatter=1.5, all_gather=0.75),), "cpu-core")
    whole_s = sum(collective(own, Kind.ALL_REDUCE, (0, 1), 100.0))
    assert whole_s == sum(collective(Cluster("ring", (ring,), "cpu-core"), Kind.ALL_REDUCE, (0, 1), 100.0))
    assert sum(collective(own, Kind.REDUCE_SCATTER, (0, 1), 100.0)) == 1.5 * whole_s
    assert sum(collective(own, Kind.ALL_GATHER, (0, 1), 100.0)) == 0.75 * whole_s
    assert Cluster.from_yaml(own.to_yaml()) == own
    with pytest.raises(InputError, match=r"at least 0\.5"):
        replace(ring, all_gather=0.4)
