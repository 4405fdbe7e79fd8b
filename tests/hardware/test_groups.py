"""Groups of devices as devices of a smaller cluster."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level, Link, Node
from hocket.hardware.groups import GroupTraffic, grouped
from hocket.hardware.overlap import OverlapModel, Rate

INSIDE, OUTSIDE = 240e9, 24e9


def servers(shared: bool, width: int = 8, count: int = 4) -> Cluster:
    """Servers with a fast level inside, and network cards outside.

    There is one card for all devices of a server, or one for each.
    """
    levels = (Level("server", width, INSIDE, 1e-6, False), Level("cluster", count, OUTSIDE, 5e-6, shared))
    return Cluster("servers", levels, "a100-80gb", host_memory_bytes=1e12)


@given(st.sampled_from([1, 2, 4, 8, 16, 32]), st.booleans(), st.booleans())
def test_numbers(width: int, shared: bool, slices: bool) -> None:
    """There are as many devices as groups, each with the memory of one rank."""
    cluster = servers(shared)
    group = grouped(cluster, width, slices)
    assert group.cluster.devices * width == cluster.devices
    assert group.cluster.capacity_bytes(0) == cluster.capacity_bytes(0)
    assert group.width == width


@pytest.mark.parametrize(("width", "names"), [(2, ["server", "cluster"]), (8, ["cluster"]), (16, ["cluster"])])
def test_levels_that_a_group_fills_are_gone(width: int, names: list[str]) -> None:
    """Levels that a group fills are gone; other levels have fewer components."""
    group = grouped(servers(True), width)
    assert [level.name for level in group.cluster.levels] == names
    assert group.inside is not None
    assert group.inside.link == (Link(INSIDE, 1e-6) if width <= 8 else Link(OUTSIDE, 5e-6))


def test_whole_messages() -> None:
    """Every rank sends whole messages.

    Over separate cards this takes as long as for one rank; over a shared one, ranks take turns.
    """
    assert grouped(servers(False), 8).cluster.levels[0].bandwidth_bytes_per_s == OUTSIDE
    assert grouped(servers(True), 8).cluster.levels[0].bandwidth_bytes_per_s == OUTSIDE / 8
    assert grouped(servers(True), 4).cluster.levels[0].bandwidth_bytes_per_s == INSIDE


@given(st.sampled_from([2, 4, 8]), st.booleans(), st.floats(1e3, 1e9))
def test_slices(width: int, shared: bool, size_bytes: float) -> None:
    """With slices, each rank sends one t-th, and a gather follows inside.

    Source: Narayanan's dissertation, section 4.4.1.
    """
    group = grouped(servers(shared), width, slices=True)
    found = group.cluster.levels[-1].link.seconds(size_bytes)
    carried = size_bytes / (OUTSIDE * (1 if shared else width))
    gathered = (width - 1) * (1e-6 + size_bytes / width / INSIDE)
    assert found == pytest.approx(carried + 5e-6 + gathered)


def test_every_member_reduces_its_own() -> None:
    """Ranks all-reduce their own parts among groups; over one card they take turns.

    Slices of messages do not matter.
    """
    for slices in (False, True):
        assert grouped(servers(True), 8, slices).cluster.levels[0].all_reduce == Link(OUTSIDE / 8, 5e-6)
        assert grouped(servers(False), 8, slices).cluster.levels[0].all_reduce == Link(OUTSIDE, 5e-6)


def test_every_member_sums_beside_its_own_computation() -> None:
    """Contention of sums and computation stays as it is with groups.

    Ranks that send over one link share its rate.
    """
    overlap = OverlapModel(0.9, 1e-3, Rate(1e9, 5e8, 0.1), Rate(2e9, 1e9, 0.1), 1e-5, 2, (1, 2, 4))
    levels = (Level("server", 4, 1e11, shared=False), Level("network", 2, 1e9, overlap=overlap))
    found = grouped(Cluster("two", levels, "v100-16gb"), 2).cluster.levels
    assert [level.overlap for level in found] == [None, overlap.scaled(0.5, 1.0)]


def test_a_ring_inside() -> None:
    """A ring inside a group has 2 (t - 1) steps of a t-th.

    A single rank needs no time. Measured figures are used first.
    """
    group = grouped(servers(True), 4)
    assert group.all_reduce_s(4e6) == pytest.approx(6 * (1e-6 + 1e6 / INSIDE))
    assert grouped(servers(True), 1).all_reduce_s(4e6) == 0
    cluster = servers(True)
    measured = replace(cluster, levels=(replace(cluster.levels[0], all_reduce=Link(1e9)), cluster.levels[1]))
    assert grouped(measured, 4).inside == GroupTraffic(Link(1e9), 4)


def test_all_of_a_cluster_is_one_group() -> None:
    """A group of all devices gives one device, on a level of width one."""
    assert [level.width for level in grouped(servers(True), 32).cluster.levels] == [1]
    assert grouped(Cluster("two", (Level("local", 2, 1e9),), "cpu-core"), 2).cluster.devices == 1


def test_mixed_clusters() -> None:
    """Groups have one device type; a type with devices that do not divide is refused."""
    mixed = replace(servers(True), device_type="", nodes=(Node("a100-80gb", 8), Node("v100-32gb", 24)))
    assert [node.devices for node in grouped(mixed, 8).cluster.nodes] == [1, 3]
    odd = replace(servers(True), device_type="", nodes=(Node("a100-80gb", 12), Node("v100-32gb", 20)))
    with pytest.raises(
        InputError,
        match=r"^tensor: found groups of 8 devices with 12 of a100-80gb; expected groups of devices of one type",
    ):
        grouped(odd, 8)


def test_widths_that_do_not_fit() -> None:
    """Widths that do not fit are refused, with the level that they would cut."""
    with pytest.raises(
        InputError,
        match=r"^tensor: found tensor-parallel size 3; "
        r"expected a divisor or a multiple of 8, the width of level `server`",
    ):
        grouped(servers(True), 3)
    with pytest.raises(InputError, match=r"^tensor: found tensor-parallel size 64; expected a divisor of 32"):
        grouped(servers(True), 64)


def test_members_that_share_memory_take_one_step() -> None:
    """Ranks that share memory exchange in one step.

    Two ranks exchange everything; more scatter and gather. Links of a ring are not used.
    """
    level = Level("local", 8, 1e9, 1e-3, all_reduce=Link(1e8, 1e-2), members=Link(1e9, 1e-4))
    cluster = Cluster("local", (level,), "cpu-core")
    two, four = (grouped(cluster, width) for width in (2, 4))
    assert two.all_reduce_s(1e6) == pytest.approx(1e-4 + 1e-3)
    assert two.gather_s(1e6) == pytest.approx(1e-4 + 0.5e-3)
    assert four.all_reduce_s(1e6) == pytest.approx(2 * (1e-4 + 0.75e-3))
    (between,) = grouped(cluster, 4, slices=True).cluster.levels
    assert between.latency_s == pytest.approx(1e-3 + 1e-4)
    assert 1 / between.bandwidth_bytes_per_s == pytest.approx((0.25 + 0.75) / 1e9)
