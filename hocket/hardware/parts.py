"""Sub-clusters of a cluster, and their prices per hour.

Rules of this file: a sub-cluster has whole servers, or some devices of one server; likewise for racks and every other
level. Its components are side by side, so a sub-cluster is an ordinary cluster. Identical sub-clusters count once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, product
from math import prod

from hocket.hardware.cluster import Cluster, Node

_MOST_MIXED = 4096  # if components of several kinds have more combinations, only each whole kind, and all, are tried


@dataclass(frozen=True)
class Subcluster:
    """A sub-cluster as a separate cluster.

    Attributes:
        usd_per_hour: price of all devices in dollars per hour; None if a price is unknown.
    """

    cluster: Cluster
    usd_per_hour: float | None

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.cluster.devices


def price_of(cluster: Cluster, device: int) -> float | None:
    """Price of one device in dollars per hour.

    This is the node's price, else the cluster's, else the type's; None if unknown.
    """
    prices = (cluster.node_of(device).price_usd_per_hour, cluster.price_usd_per_hour)
    price = next((price for price in prices if price is not None), None)
    return price if price is not None else cluster.type_of(device).price_usd_per_hour


def usd_per_hour(cluster: Cluster) -> float | None:
    """Price of all devices in dollars per hour; None if a price is unknown."""
    whole, first = 0.0, 0
    for node in cluster.nodes or (Node(cluster.device_type, cluster.devices),):
        price = price_of(cluster, first)
        if price is None:
            return None
        whole, first = whole + node.devices * price, first + node.devices
    return whole


def whole(cluster: Cluster) -> Subcluster:
    """The cluster as a sub-cluster of all its devices."""
    return Subcluster(cluster, usd_per_hour(cluster))


def parts(cluster: Cluster) -> tuple[Subcluster, ...]:
    """All sub-clusters with their prices, fewest devices first.

    The last one is the cluster itself.
    """
    found: dict[tuple[object, ...], Cluster] = {}
    for level in range(len(cluster.levels)):
        for taken in _taken(cluster, level):
            if level == 0 or len(taken) > 1:  # a single component is a sub-cluster of the level below
                smaller = _of(cluster, level, taken)
                found.setdefault((smaller.levels, smaller.nodes), smaller)
    ordered = sorted(found.values(), key=lambda one: one.devices)
    return tuple(whole(one) for one in (*(one for one in ordered if one.devices < cluster.devices), cluster))


def _taken(cluster: Cluster, level: int) -> Iterator[tuple[int, ...]]:
    """Yield the combinations of components that a sub-cluster of one level may have.

    The components are inside one component of the level. Combinations of identical components count once.

    Arguments:
        level: index of the level that joins the components.

    Yields:
        The first device of each component of the combination.
    """
    below = prod(one.width for one in cluster.levels[:level])
    span = below * cluster.levels[level].width
    seen: set[tuple[object, ...]] = set()
    for start in range(0, cluster.devices, span):
        kinds: dict[object, list[int]] = {}
        for first in range(start, start + span, below):
            kinds.setdefault(tuple(_runs(cluster, (first,), below)), []).append(first)
        alike = tuple((kind, len(firsts)) for kind, firsts in kinds.items())
        if alike in seen:
            continue
        seen.add(alike)
        counts: Iterator[tuple[int, ...]] = product(*(range(len(firsts) + 1) for firsts in kinds.values()))
        if prod(len(firsts) + 1 for firsts in kinds.values()) > _MOST_MIXED:
            all_of = [
                tuple(len(f) if k == one else 0 for k, f in enumerate(kinds.values())) for one in range(len(kinds))
            ]
            counts = iter([*all_of, tuple(len(firsts) for firsts in kinds.values())])
        for count in counts:
            if any(count):
                chosen = (firsts[:n] for firsts, n in zip(kinds.values(), count, strict=True))
                yield tuple(sorted(first for group in chosen for first in group))


def _of(cluster: Cluster, level: int, taken: tuple[int, ...]) -> Cluster:
    below = prod(one.width for one in cluster.levels[:level])
    levels = (*cluster.levels[:level], replace(cluster.levels[level], width=len(taken)))
    devices = below * len(taken)
    if devices == cluster.devices:
        return cluster
    nodes = tuple(_runs(cluster, taken, below)) if cluster.nodes else ()
    counts: dict[str, int] = {}
    for node in nodes or (Node(cluster.device_type, devices),):
        counts[node.device_type] = counts.get(node.device_type, 0) + node.devices
    told = " + ".join(f"{count} {kind}" for kind, count in counts.items())
    # A part of a server's devices still has all of the server's cores.
    return replace(cluster, name=f"{told} of {cluster.name}", levels=levels, nodes=nodes)


def _runs(cluster: Cluster, firsts: tuple[int, ...], below: int) -> Iterator[Node]:
    """Yield the nodes of some runs of neighbouring devices.

    Equal neighbours are merged into one node.

    Arguments:
        firsts: first device of each run.
        below: devices in each run.
    """
    each = (replace(cluster.node_of(d), devices=1) for first in firsts for d in range(first, first + below))
    for node, group in groupby(each):
        yield replace(node, devices=sum(1 for _ in group))
