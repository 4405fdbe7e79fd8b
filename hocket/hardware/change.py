"""Hypothetical changes to a cluster, for what-if analysis.

They change links, memory, rates, or the number or type of devices.

Rules of this file: functions map clusters to clusters; files stay as they are. Only the named properties change.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from hocket.errors import InputError, nearest
from hocket.hardware.catalog import device_type
from hocket.hardware.cluster import Cluster, Level, Link, Node
from hocket.hardware.device_type import DeviceType


@dataclass(frozen=True)
class Change:
    """Changes to a cluster.

    Attributes:
        bandwidth, latency: factors on a level's bandwidth and latency, by the level's name.
        memory, rate: factors on the memory and on the speed of each device.
        host_link: factor on the bandwidth between devices and their hosts.
        devices: new number of devices, reached with more or fewer components of the outermost level; 0 for no change.
        device_type: new type of all devices; empty for no change.
        alone: sub-cluster to use instead of the whole cluster; None for no change.
    """

    bandwidth: Mapping[str, float] = field(default_factory=dict)
    latency: Mapping[str, float] = field(default_factory=dict)
    memory: float = 1.0
    rate: float = 1.0
    host_link: float = 1.0
    devices: int = 0
    device_type: str = ""
    alone: Cluster | None = None

    def __post_init__(self) -> None:
        factors = [("memory", self.memory), ("rate", self.rate), ("host_link", self.host_link)]
        factors += [(f"{key} {name}", x) for key in ("bandwidth", "latency") for name, x in getattr(self, key).items()]
        for key, factor in factors:
            if not 0 < factor < float("inf"):
                raise InputError(key, str(factor), "a factor > 0")

    def of(self, cluster: Cluster) -> Cluster:
        """Apply these changes to a cluster.

        Raises:
            InputError: the cluster does not have a named level, its levels or its several device types do not allow
                the number of devices, or the type is unknown.
        """
        cluster = self.alone or cluster
        for name in (*self.bandwidth, *self.latency):
            names = [level.name for level in cluster.levels]
            if name not in names:
                raise InputError("level", repr(name), f"one of {', '.join(names)}", nearest(name, names))
        levels = tuple(self._level(level) for level in cluster.levels)
        changed = (
            _counted(replace(cluster, levels=levels), self.devices) if self.devices else replace(cluster, levels=levels)
        )
        if self.device_type:
            changed = _typed(changed, self.device_type)
        if self.memory != 1:
            changed = _roomier(changed, self.memory)
        if self.host_link != 1:
            changed = with_host_links(changed, self._host_link)
        return _quicker(changed, self.rate) if self.rate != 1 else changed

    def _host_link(self, _: str, now: Link) -> Link:
        return replace(now, bandwidth_bytes_per_s=now.bandwidth_bytes_per_s * self.host_link)

    def _level(self, level: Level) -> Level:
        rate, wait = self.bandwidth.get(level.name, 1.0), self.latency.get(level.name, 1.0)
        steps = level.all_reduce
        return replace(
            level,
            bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * rate,
            latency_s=level.latency_s * wait,
            all_reduce=steps and Link(steps.bandwidth_bytes_per_s * rate, steps.latency_s * wait),
            overlap=level.overlap and level.overlap.scaled(rate, wait),
        )


SHARED = "host_link"
"""Name of a host link that a server's devices share, as in a cluster file.

Another host link has the name of its device type.
"""


def host_link_name(cluster: Cluster, device: int) -> str:
    """Name of a device's link to its host."""
    return SHARED if cluster.host_link is not None else cluster.node_of(device).device_type


def with_host_links(cluster: Cluster, other: Callable[[str, Link], Link]) -> Cluster:
    """Replace the links between devices and hosts of a cluster.

    Shared links stay shared, separate links stay separate.

    Arguments:
        other: function (name of a link, link) -> new link.
    """
    if cluster.host_link is not None:
        return replace(cluster, host_link=other(SHARED, cluster.host_link))
    changed = []
    for kind in {kind.name: kind for kind in (cluster.type_of(device) for device in range(cluster.devices))}.values():
        link = other(kind.name, Link(kind.host_bandwidth_bytes_per_s, kind.host_latency_s))
        one = replace(kind, host_bandwidth_bytes_per_s=link.bandwidth_bytes_per_s, host_latency_s=link.latency_s)
        changed += [one] if one != kind else []
    names = {kind.name for kind in changed}
    return replace(cluster, types=(*(one for one in cluster.types if one.name not in names), *changed))


def _counted(cluster: Cluster, devices: int) -> Cluster:
    """Change the number of components of a cluster's outermost level.

    A number smaller than a server takes devices of one server.

    Arguments:
        devices: new number of devices of the cluster.

    Raises:
        InputError: the cluster has several device types, or its levels do not allow the number.
    """
    inner = prod(level.width for level in cluster.levels[:-1])
    if cluster.nodes:
        raise InputError(
            "devices",
            f"{devices} devices of a heterogeneous cluster",
            "a cluster of one device type",
            "Write a cluster file.",
        )
    if devices % inner == 0:
        return replace(cluster, levels=(*cluster.levels[:-1], replace(cluster.levels[-1], width=devices // inner)))
    if devices < cluster.levels[0].width:
        return replace(cluster, levels=(replace(cluster.levels[0], width=devices),))
    raise InputError("devices", str(devices), f"a multiple of {inner}, or fewer than {cluster.levels[0].width}")


def _typed(cluster: Cluster, name: str) -> Cluster:
    """Give all devices of a cluster another type, with that type's memory and price.

    Raises:
        InputError: the type is unknown.
    """
    if name not in [own.name for own in cluster.types]:
        device_type(name)
    return replace(cluster, device_type=name, nodes=(), memory_bytes=None, price_usd_per_hour=None, price_source="")


def _roomier(cluster: Cluster, factor: float) -> Cluster:
    if not cluster.nodes:
        return replace(cluster, memory_bytes=cluster.capacity_bytes(0) * factor)
    firsts = [sum(node.devices for node in cluster.nodes[:k]) for k in range(len(cluster.nodes))]
    nodes = [
        replace(node, memory_bytes=cluster.capacity_bytes(first) * factor)
        for node, first in zip(cluster.nodes, firsts, strict=True)
    ]
    return replace(cluster, nodes=tuple(nodes))


def _quicker(cluster: Cluster, factor: float) -> Cluster:
    """Make all devices of a cluster compute and access memory faster.

    Kernel launches take as long as before.

    Arguments:
        factor: factor on compute rates and memory bandwidth.
    """
    kinds: dict[str, DeviceType] = {}
    for device in range(cluster.devices):
        kind = cluster.type_of(device)
        kinds.setdefault(
            kind.name,
            replace(
                kind,
                name=f"{kind.name} x {factor:g}",
                flops_per_s={dtype: rate * factor for dtype, rate in kind.flops_per_s.items()},
                memory_bandwidth_bytes_per_s=kind.memory_bandwidth_bytes_per_s * factor,
            ),
        )

    def renamed(node: Node) -> Node:
        return replace(node, device_type=kinds[node.device_type].name)

    single = kinds[cluster.device_type].name if cluster.device_type else ""
    nodes = tuple(renamed(node) for node in cluster.nodes)
    return replace(cluster, device_type=single, nodes=nodes, types=(*cluster.types, *kinds.values()))
