"""Changes to a cluster affect only the named properties."""

from dataclasses import replace

import pytest

from hocket.errors import InputError
from hocket.hardware.change import Change
from hocket.hardware.cluster import Cluster, Level, Link, Node

LEVELS = (Level("server", 4, 1e11, 1e-6, False, Link(5e10, 2e-6)), Level("cluster", 3, 1e9, 1e-5))
ALIKE = Cluster("alike", LEVELS, "a100-40gb", price_usd_per_hour=3.0, price_source="a list")
MIXED = Cluster("mixed", LEVELS, nodes=(Node("h100", 4), Node("v100-16gb", 8, memory_bytes=10e9)))


def test_nothing_changes_nothing() -> None:
    """An empty change leaves the cluster as it is."""
    assert Change().of(ALIKE) == ALIKE
    assert Change().of(MIXED) == MIXED


def test_links() -> None:
    """A change of one level affects its messages and sums; other levels stay."""
    found = Change(bandwidth={"server": 2.0}, latency={"server": 0.5}).of(ALIKE)
    assert found.levels[0] == Level("server", 4, 2e11, 0.5e-6, False, Link(1e11, 1e-6))
    assert replace(found, levels=ALIKE.levels) == ALIKE
    assert found.levels[1] == ALIKE.levels[1]


def test_links_to_hosts() -> None:
    """A change of host links affects the cluster file's link, or those of all types."""
    own = replace(ALIKE, host_link=Link(2e9, 1e-5))
    assert Change(host_link=2.0).of(own) == replace(own, host_link=Link(4e9, 1e-5))
    for cluster in (ALIKE, MIXED):
        found = Change(host_link=0.5).of(cluster)
        for device in (0, 4):
            (before, shared), (after, still) = cluster.host_link_of(device), found.host_link_of(device)
            assert after == replace(before, bandwidth_bytes_per_s=before.bandwidth_bytes_per_s / 2)
            assert (still, found.type_of(device).name) == (shared, cluster.type_of(device).name)
        assert replace(found, types=()) == cluster


def test_memory_of_each_device() -> None:
    """A change of memory scales each device's present memory.

    That is its node's or its type's.
    """
    assert Change(memory=1.1).of(ALIKE).capacity_bytes(5) == pytest.approx(44e9)
    found = Change(memory=1.5).of(MIXED)
    assert [found.capacity_bytes(d) for d in (0, 4)] == pytest.approx([120e9, 15e9])


def test_rates() -> None:
    """A change of rates makes new device types; launches, memory and prices stay."""
    for cluster in (ALIKE, MIXED):
        found = Change(rate=2.0).of(cluster)
        for device in (0, 4):
            before, after = cluster.type_of(device), found.type_of(device)
            assert after.flops_per_s == {dtype: 2 * rate for dtype, rate in before.flops_per_s.items()}
            assert after.memory_bandwidth_bytes_per_s == 2 * before.memory_bandwidth_bytes_per_s
            assert (after.launch_s, after.price_usd_per_hour) == (before.launch_s, before.price_usd_per_hour)
            assert found.capacity_bytes(device) == cluster.capacity_bytes(device)
        assert Cluster.from_yaml(found.to_yaml()) == found


def test_numbers_and_types() -> None:
    """Changes of the number of devices and of their type.

    There are more servers, or a part of one. Another type has its own memory and price.
    """
    assert [level.width for level in Change(devices=20).of(ALIKE).levels] == [4, 5]
    assert [level.width for level in Change(devices=3).of(ALIKE).levels] == [3]
    found = Change(device_type="h100").of(MIXED)
    assert {found.type_of(d).name for d in range(12)} == {"h100"}
    assert found.capacity_bytes(11) == 80e9
    assert Change(device_type="h100").of(ALIKE).price_usd_per_hour is None


@pytest.mark.parametrize(
    ("cluster", "change", "message"),
    [
        (ALIKE, {"bandwidth": {"servr": 2.0}}, "level: found 'servr'; expected one of server, cluster. .*server"),
        (ALIKE, {"devices": 6}, "devices: found 6; expected a multiple of 4, or fewer than 4"),
        (MIXED, {"devices": 8}, "devices: found 8 devices of a heterogeneous cluster"),
        (ALIKE, {"device_type": "h1000"}, "device type: found 'h1000'.*h100"),
        (ALIKE, {"memory": 0.0}, "memory: found 0.0; expected a factor > 0"),
        (ALIKE, {"latency": {"server": -1.0}}, "latency server: found -1.0"),
    ],
)
def test_what_cannot_be(cluster: Cluster, change: dict[str, object], message: str) -> None:
    """Impossible changes are refused by name."""
    with pytest.raises(InputError, match=message):
        Change(**change).of(cluster)  # type: ignore[arg-type]
