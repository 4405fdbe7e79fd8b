"""What runs beside what: the resources that an instruction uses while it runs, and how they are shared.

Rules of this file: a resource has a capacity; whoever it governs runs at the rate capacity / load, at most 1, and a
user of several at the least of these (equal shares; what one flow cannot use is not given to the others, so that
predictions err to the slow side). Rates change whenever a user comes or goes.

- A shared level: all flows that leave one of its components share the component's bandwidth, and so do all that enter.
- A level that is not shared: every pair of devices has its own link in each direction.
- `host_cores`: compute on devices of one innermost component shares that many cores. A transfer in motion takes
  `transfer_cores` on both ends and is not slowed itself: operating systems prefer threads that mostly wait.
- Where overlap was measured (overlaps.py), speeds are resources: the least share of these multiplies the rate, and gradients in
  motion take no `transfer_cores`.
"""

from enum import IntEnum
from typing import NamedTuple

from hocket.cost.transfer import ring_hops
from hocket.hardware.cluster import Cluster

Resource = tuple[str, int, int, int]


class Sharing(IntEnum):
    """How a resource governs one of its users: not; the least share is the rate; the least share of speeds multiplies that."""

    NOT = 0
    RATE = 1
    SPEED = 2


class Use(NamedTuple):
    """One user of one resource: the load it adds, and how the resource governs its rate."""

    resource: Resource
    load: float
    sharing: Sharing

    @property
    def governed(self) -> bool:
        """Whether the resource governs its rate at all."""
        return self.sharing is not Sharing.NOT


def host_of(cluster: Cluster, device: int) -> Resource:
    """The cores that a device's workers share with those of its server."""
    return ("host", 0, device // cluster.levels[0].width, 0)


def compute_uses(cluster: Cluster, device: int) -> tuple[Use, ...]:
    """What a compute instruction uses beside its own device."""
    return () if cluster.host_cores is None else (Use(host_of(cluster, device), 1.0, Sharing.RATE),)


def transfer_uses(cluster: Cluster, hops: tuple[tuple[int, int], ...], cores: bool = True) -> tuple[Use, ...]:
    """What a message, or a ring of messages, uses: the links of the outermost level that it crosses, and cores.

    Arguments:
        hops: (source, target) of every message in motion: one for a send, the ring's for a collective.
        cores: whether they take `transfer_cores`.
    """
    if not hops:
        return ()
    levels = {hop: cluster.level_between(*hop) for hop in hops}
    level = max(levels.values())
    found: dict[Resource, Use] = {}
    for (source, target), crossed in levels.items():
        if crossed != level:
            continue
        if cluster.levels[level].shared:
            links: tuple[Resource, ...] = (
                ("out", level, cluster.component(source, level), 0),
                ("in", level, cluster.component(target, level), 0),
            )
        else:
            links = (("pair", level, source, target),)
        found.update({link: Use(link, 1.0, Sharing.RATE) for link in links})
    if cores and cluster.host_cores is not None and cluster.transfer_cores > 0:
        for device in sorted({device for hop in hops for device in hop}):
            host = host_of(cluster, device)
            load = found[host].load if host in found else 0.0
            found[host] = Use(host, load + cluster.transfer_cores, Sharing.NOT)
    return tuple(found.values())


def collective_uses(cluster: Cluster, group: tuple[int, ...], cores: bool = True) -> tuple[Use, ...]:
    """What a ring collective uses: each component's link of the level that the group spans, in both directions."""
    return transfer_uses(cluster, ring_hops(group), cores)


def capacity(cluster: Cluster, resource: Resource) -> float:
    """How much load a resource carries at full rate: cores of a host, one flow of a link."""
    if resource[0] == "host":
        return float(cluster.host_cores or 0)
    return 1.0
