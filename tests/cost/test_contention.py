"""Resources that instructions use."""

from dataclasses import replace

from hocket.cost.contention import capacity, collective_uses, compute_uses, transfer_uses
from hocket.hardware.cluster import Cluster, Level


def cluster(shared: bool, host_cores: float | None = None, transfer_cores: float = 0.0) -> Cluster:
    """Two servers of two devices. Both levels are shared, or neither is."""
    levels = (Level("server", 2, 100.0, shared=shared), Level("cluster", 2, 10.0, shared=shared))
    return Cluster("c", levels, "cpu-core", host_cores=host_cores, transfer_cores=transfer_cores)


def test_a_shared_level_has_a_way_out_and_a_way_in() -> None:
    """A message between servers uses the way out of one and the way into the other.

    The devices in the servers do not matter.
    """
    found = transfer_uses(cluster(True), ((1, 2),))
    assert [use.resource for use in found] == [("out", 1, 0, 0), ("in", 1, 1, 0)]
    assert found == transfer_uses(cluster(True), ((0, 3),))
    assert transfer_uses(cluster(True), ((0, 1),))[0].resource == ("out", 0, 0, 0)
    assert transfer_uses(cluster(True), ((2, 1),))[0].resource == ("out", 1, 1, 0)


def test_a_level_that_is_not_shared_has_a_link_for_each_pair() -> None:
    """On a level that is not shared, two pairs of devices share no link."""
    assert transfer_uses(cluster(False), ((0, 2),))[0].resource == ("pair", 1, 0, 2)
    assert transfer_uses(cluster(False), ((1, 3),))[0].resource == ("pair", 1, 1, 3)


def test_a_ring_uses_each_component_once_each_way() -> None:
    """A ring over both servers crosses out of and into each of them once.

    Hops inside a server do not count.
    """
    found = {use.resource for use in collective_uses(cluster(True), (0, 1, 2, 3))}
    assert found == {("out", 1, 0, 0), ("in", 1, 0, 0), ("out", 1, 1, 0), ("in", 1, 1, 0)}
    pairs = {use.resource for use in collective_uses(cluster(False), (0, 1, 2, 3))}
    assert pairs == {("pair", 1, 1, 2), ("pair", 1, 3, 0)}
    assert collective_uses(cluster(True), (2,)) == ()


def test_cores_govern_compute_and_are_loaded_by_transfers() -> None:
    """Compute shares its server's cores; a transfer loads both ends.

    If both ends are on one server, it loads that server twice.
    """
    shared = cluster(True, host_cores=3, transfer_cores=0.5)
    (own,) = compute_uses(shared, 3)
    assert (own.resource, own.load, own.governed) == (("host", 0, 1, 0), 1.0, True)
    assert capacity(shared, own.resource) == 3.0
    hosts = [use for use in transfer_uses(shared, ((0, 1),)) if use.resource[0] == "host"]
    assert [(use.resource[2], use.load, use.governed) for use in hosts] == [(0, 1.0, False)]
    hosts = [use for use in transfer_uses(shared, ((0, 2),)) if use.resource[0] == "host"]
    assert [(use.resource[2], use.load) for use in hosts] == [(0, 0.5), (1, 0.5)]
    assert compute_uses(cluster(True), 0) == ()
    assert capacity(shared, ("out", 0, 0, 0)) == 1.0


def test_a_collective_keeps_cores_of_its_own_busy() -> None:
    """A collective loads each rank's cores with `collective_cores`.

    A message loads them with `transfer_cores`; without `collective_cores`, so does a collective.
    """

    def loads(of: Cluster) -> tuple[float, float]:
        message = next(use.load for use in transfer_uses(of, ((0, 1),)) if use.resource[0] == "host")
        return message, sum(use.load for use in collective_uses(of, (0, 1)) if use.resource[0] == "host")

    usual = cluster(True, host_cores=3, transfer_cores=0.5)
    assert loads(usual) == (1.0, 1.0)
    assert loads(replace(usual, collective_cores=0.9)) == (1.0, 1.8)
    assert loads(replace(usual, collective_cores=0.0)) == (1.0, 0.0)
    assert not any(
        use.resource[0] == "host" for use in collective_uses(replace(usual, collective_cores=0.9), (0, 1), cores=False)
    )
