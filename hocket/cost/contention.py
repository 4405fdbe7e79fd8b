"""Contention: resources that instructions use, and how concurrent ones share them.

Rules of this file: a resource has a capacity, and its users have loads on it. If the loads add up to more than the
capacity, users run at the rate capacity / load instead of 1; but some users only add load (`Sharing.NOT`). A user of
several resources runs at the smallest of these rates. Shares are equal, and the part that one flow cannot use is not
given to others, so that predictions err to the slow side. Rates change whenever a user starts or ends.

- A shared level: all flows that leave one of its components share the component's bandwidth, and so do all flows that
  enter it.
- A level that is not shared: every pair of devices has its own link in each direction.
- A device that computes for several waves at once: each of its instructions needs a share of it
  (background/device_share.py). If the shares add up to more than 1, all run at the same rate, 1 / (sum of shares).
- A link that a server's devices share to their host: one link in each direction.
- A device that runs a background job and a foreground job: `Collocation`, under a `Ceiling`.
- `Cluster.host_cores`: compute on devices of one innermost component shares that many cores. A transfer uses
  `transfer_cores` on both ends, a collective `collective_cores` on each rank. Neither is slowed by this: operating
  systems prefer threads that mostly wait.
- If contention of computation and all-reduces was measured (buckets/contention_model.py), speeds are resources as
  well: the smallest capacity / load of these multiplies the rate, and all-reduces of gradients use no cores.
"""

from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import NamedTuple

from hocket.cost.transfer import ring_hops
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster

Resource = tuple[str, int, int, int]


class Sharing(IntEnum):
    """Effect of a short resource on the rate of an instruction that uses it.

    A resource is short if the loads of its users add up to more than its capacity; otherwise capacity / load counts
    as 1.
    """

    NOT = 0  # no effect; the user only adds to the load
    RATE = 1  # the smallest capacity / load of these resources is the rate
    SPEED = 2  # the smallest capacity / load of these resources multiplies the rate


class Use(NamedTuple):
    """Use of one resource by an instruction.

    Attributes:
        resource: key of the resource.
        load: load that the instruction puts on the resource, for example one core of a server or one flow on a link.
        sharing: effect of the resource on the rate of the instruction.
    """

    resource: Resource
    load: float
    sharing: Sharing

    @property
    def governed(self) -> bool:
        """True if the instruction runs slower when the resource is short."""
        return self.sharing is not Sharing.NOT


def host_of(cluster: Cluster, device: int) -> Resource:
    """Resource of the cores that a device's worker shares with workers of its server."""
    return ("host", 0, device // cluster.levels[0].width, 0)


def compute_uses(cluster: Cluster, device: int) -> tuple[Use, ...]:
    """Resources that a compute instruction uses in addition to its own device."""
    return () if cluster.host_cores is None else (Use(host_of(cluster, device), 1.0, Sharing.RATE),)


def wave_use(device: int, share: float) -> Use:
    """Load that a compute instruction puts on its device, if the device computes for several waves at once.

    Arguments:
        share: share of the device that the instruction needs, 0 to 1.
    """
    return Use(("device", 0, device, 0), share, Sharing.RATE)


def transfer_uses(cluster: Cluster, hops: tuple[tuple[int, int], ...], cores: float | None = None) -> tuple[Use, ...]:
    """Resources that messages use: cores, and links of the outermost level they cross.

    Arguments:
        hops: source and target of every message: one pair for a send, all neighbours of the ring for a collective.
        cores: cores that the messages keep busy on each side; `transfer_cores` by default.
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
    taken = cluster.transfer_cores if cores is None else cores
    if taken > 0 and cluster.host_cores is not None:
        for device in sorted({device for hop in hops for device in hop}):
            host = host_of(cluster, device)
            load = found[host].load if host in found else 0.0
            found[host] = Use(host, load + taken, Sharing.NOT)
    return tuple(found.values())


def swap_uses(cluster: Cluster, device: int, inwards: bool) -> tuple[Use, ...]:
    """Resource that a swap uses: one direction of the device's link to its host.

    Arguments:
        inwards: True for a swap from the host to the device.
    """
    _, shared = cluster.host_link_of(device)
    server = device // cluster.levels[0].width if shared else device
    return (Use(("swap in" if inwards else "swap out", int(shared), server, 0), 1.0, Sharing.RATE),)


def collective_uses(cluster: Cluster, group: tuple[int, ...], cores: bool = True) -> tuple[Use, ...]:
    """Resources that a ring collective uses: cores, and both directions of links.

    Arguments:
        group: devices of the ring.
        cores: True if the collective uses cores.
    """
    return transfer_uses(cluster, ring_hops(group), cluster.collective_cores if cores else 0.0)


def capacity(cluster: Cluster, resource: Resource) -> float:
    """Maximum load of a resource up to which its users run at full rate.

    It is the number of cores for the cores of a server (`Cluster.host_cores`), and 1 for all other resources, such as
    one flow for a link.
    """
    if resource[0] == "host":
        return float(cluster.host_cores or 0)
    return 1.0


class Ceiling(NamedTuple):
    """Joint limit on the rates of two jobs on one device.

    Two jobs together get no more work out of a device than the better of the two does alone: the share of the device
    that a layer leaves idle is not another device. Let u be the utilization of a job that runs alone (its mean demand
    while it computes), and r its rate beside the other job (1 as if alone). At every moment,

        u_foreground r_foreground + u_background r_background <= max(u_foreground, u_background).

    So r_foreground + r_background is at most 1 + the share that is really idle. That share is
    1 - (smaller u) / (greater u): the part of the more efficient job's utilization that the other job leaves. It is
    zero if both are equally efficient.
    Source: DeepPool (MLSys 2022), figure 9, where the background alone on each device is the maximum throughput.

    Attributes:
        foreground, background: u of each job divided by the greater u: 0 to 1, and one of them is 1.
    """

    foreground: float = 1.0
    background: float = 1.0

    @classmethod
    def of(cls, foreground: float, background: float) -> "Ceiling":
        """Ceiling of two jobs, from the utilization of each alone.

        Arguments:
            foreground: utilization from 0 to 1.
            background: utilization above 0, at most 1.
        """
        most = max(foreground, background)
        return cls(foreground / most, background / most)

    @property
    def room(self) -> float:
        """Maximum rate of the background job that leaves the foreground job at rate 1."""
        return min(1.0, (1 - self.foreground) / self.background)

    def limited(self, foreground: float, background: float) -> tuple[float, float]:
        """Two rates, reduced by the same factor if they exceed the limit together.

        Arguments:
            foreground, background: rate of each job; 1 as if alone.
        """
        together = self.foreground * foreground + self.background * background
        return (foreground, background) if together <= 1 else (foreground / together, background / together)


EVEN = Ceiling()
"""Ceiling of two jobs with equal utilization: their rates add up to at most 1."""


@dataclass(frozen=True)
class Collocation:
    """Rules of sharing between a background and a foreground job.

    A launch is work that the background gives to a device in one piece. A launch keeps its share of the device until it
    is over (section 5: the scheduler on the device is not preemptive), and gets any part of the device that becomes
    free.
    Source: DeepPool (MLSys 2022), sections 5 and 7. All section numbers below are of this paper.

    Attributes:
        priority: True if a launch gets the share of the device that the foreground leaves when the launch begins. False
            if both jobs run at the same rate: 1 / (sum of demands) if the demands add up to more than 1. `Ceiling`
            holds in both cases.
        beside: True if launches begin while layers of the foreground run, in the share of the device that the layers
            leave ("Col"). False if they begin only while the foreground computes nothing; a launch then gets the whole
            device.
        outstanding: number of launches that are given to a device at once. When one has begun, all of them run, one
            after the other. Only the first has priority, because queues on the way to the device have no priorities
            (section 5). "Launch pacing" (section 7.2) keeps this number low; DeepPool does not say how low.
        launch_s: maximum seconds of one launch alone on the device. Longer ones are divided (CUDA graphs in groups,
            section 5). None: a layer's forward, or its backward, is one launch.
        collective_slowdown: factor on the seconds of a collective while a background job runs on one of its devices.
            "More than doubles in execution time" (section 5): 2 is the smallest number that this can mean.
        compute_slowdown: factor on the seconds of layers of both jobs while the other job runs, beyond the effect of
            shares (caches, memory). The paper gives no number.
        slowdown_limit: maximum slowdown of the foreground's layers and collectives. If one is slowed more, no launch
            begins while it runs ("slowdown feedback loop", sections 5 and 7.2; no number is given).
        least_share: smallest share of a device that a launch begins with: one of an A100's 108 multiprocessors.
    """

    priority: bool = True
    beside: bool = True
    outstanding: int = 1
    launch_s: float | None = None
    collective_slowdown: float = 2.0
    compute_slowdown: float = 1.0
    slowdown_limit: float = inf
    least_share: float = 1 / 108

    def __post_init__(self) -> None:
        for name in ("collective_slowdown", "compute_slowdown", "slowdown_limit"):
            if not getattr(self, name) >= 1:
                raise InputError(name, str(getattr(self, name)), ">= 1: a factor on the time without background job")
        if self.outstanding < 1:
            raise InputError("outstanding", str(self.outstanding), "at least 1 background launch")
        if self.launch_s is not None and not self.launch_s > 0:
            raise InputError("launch_s", str(self.launch_s), "seconds > 0")
        if not 0 < self.least_share <= 1:
            raise InputError("least_share", str(self.least_share), "more than 0, at most 1")

    def share(self, foreground: float, background: float, ceiling: Ceiling) -> float:
        """Share of a device that a launch gets when it begins.

        With priority, it does not slow the foreground. Without priority, it is the full demand of the launch.

        Arguments:
            foreground, background: demand of each job, 0 to 1; 0 for a foreground that computes nothing.
        """
        if not self.priority or foreground <= 0:
            return background
        return max(0.0, min(background, 1 - foreground, background * ceiling.room))

    def rates(
        self, foreground: float, background: float, share: float | None, ceiling: Ceiling = EVEN
    ) -> tuple[float, float]:
        """Rates of foreground and background job on one device; 1 as if alone.

        Arguments:
            foreground, background: demand of each job, 0 to 1; 0 for a foreground that computes nothing.
            share: share of the device that the background's launch keeps until it ends; None without priority.
            ceiling: joint limit on both rates.
        """
        if foreground <= 0:
            return 1.0, 1.0 if share is None else share / background
        if share is None:
            ours = theirs = 1 / max(1.0, foreground + background)
        else:
            ours, theirs = min(1.0, max(0.0, 1 - share) / foreground), share / background
        ours, theirs = ceiling.limited(ours, theirs)
        return ours / self.compute_slowdown, theirs / self.compute_slowdown
