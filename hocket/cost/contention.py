"""Contention: resources that an instruction uses while it runs, and how concurrent instructions share them.

Rules of this file: a resource has a capacity; whoever it governs runs at the rate capacity / load, at most 1, and a
user of several at the least of these (equal shares; what one flow cannot use is not given to the others, so that
predictions err to the slow side). Rates change whenever a user comes or goes.

- A shared level: all flows that leave one of its components share the component's bandwidth, and so do all that enter.
- A level that is not shared: every pair of devices has its own link in each direction.
- A device that computes for several waves at once: each of its instructions needs a share of it (device_share.py), and all go on at
  the same pace, 1 / (sum of shares), where that is more than the device has.
- What a server's devices share to their host is one link in each direction.
- A device that runs a background job beside the foreground's: `Collocation`, under a `Ceiling`.
- `host_cores`: compute on devices of one innermost component shares that many cores. A transfer in motion takes
  `transfer_cores` on both ends, a collective `collective_cores` on each member, and neither is slowed itself: operating systems
  prefer threads that mostly wait.
- Where overlap was measured (contention_model.py), speeds are resources: the least share of these multiplies the rate, and gradients in
  motion take no cores.
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
    """Effect of a resource on the rate of its users: none, a share of the rate, or a share of the speed.

    The smallest share of rates is the rate. The smallest share of speeds multiplies it.
    """

    NOT = 0
    RATE = 1
    SPEED = 2


class Use(NamedTuple):
    """One use of a resource: its load, and the effect of the resource on the user's rate."""

    resource: Resource
    load: float
    sharing: Sharing

    @property
    def governed(self) -> bool:
        """True if the resource affects the rate."""
        return self.sharing is not Sharing.NOT


def host_of(cluster: Cluster, device: int) -> Resource:
    """The cores that a device's workers share with those of its server."""
    return ("host", 0, device // cluster.levels[0].width, 0)


def compute_uses(cluster: Cluster, device: int) -> tuple[Use, ...]:
    """Resources that a compute instruction uses besides its own device."""
    return () if cluster.host_cores is None else (Use(host_of(cluster, device), 1.0, Sharing.RATE),)


def wave_use(device: int, share: float) -> Use:
    """Use of the own device by a compute instruction beside other waves."""
    return Use(("device", 0, device, 0), share, Sharing.RATE)


def transfer_uses(cluster: Cluster, hops: tuple[tuple[int, int], ...], cores: float | None = None) -> tuple[Use, ...]:
    """Resources of a message or a ring of messages: links of the outermost level it crosses, and cores.

    Arguments:
        hops: (source, target) of every message in motion: one for a send, the ring's for a collective.
        cores: that they keep busy on each side; by default `transfer_cores`.
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
    """Resources of a swap: one direction of the host link, which the devices of a server may share."""
    _, shared = cluster.host_link_of(device)
    server = device // cluster.levels[0].width if shared else device
    return (Use(("swap in" if inwards else "swap out", int(shared), server, 0), 1.0, Sharing.RATE),)


def collective_uses(cluster: Cluster, group: tuple[int, ...], cores: bool = True) -> tuple[Use, ...]:
    """Resources of a ring collective: both directions of each component's link on the spanned level, and cores.

    Arguments:
        cores: whether it takes any.
    """
    return transfer_uses(cluster, ring_hops(group), cluster.collective_cores if cores else 0.0)


def capacity(cluster: Cluster, resource: Resource) -> float:
    """Load that a resource carries at full rate: cores of a host, or one flow of a link."""
    if resource[0] == "host":
        return float(cluster.host_cores or 0)
    return 1.0


class Ceiling(NamedTuple):
    """The most that two jobs do together on one device, in terms of what each does alone there.

    Two jobs together get no more work out of a device than the better of the two does alone: a share of the device that a layer leaves
    is not another device. With u for the utilization of a job that runs alone (its mean demand while it computes) and r for its rate
    beside the other (1 as if alone), u_foreground r_foreground + u_background r_background <= max(u_foreground, u_background) at every
    moment. So r_foreground + r_background <= 1 + the share that is really idle, which is what the less efficient of the two leaves
    of what the other one is seen to use: nothing, where both are equally efficient.
    Source: DeepPool (MLSys 2022), figure 9, where the background alone on each device is the maximum throughput.

    Attributes:
        foreground, background: u of each by the greater u: 0 to 1, and one of them is 1.
    """

    foreground: float = 1.0
    background: float = 1.0

    @classmethod
    def of(cls, foreground: float, background: float) -> "Ceiling":
        """The ceiling of two jobs by their utilization, 0 to 1, the background's more than 0."""
        most = max(foreground, background)
        return cls(foreground / most, background / most)

    @property
    def room(self) -> float:
        """The background's rate that leaves the foreground its full pace."""
        return min(1.0, (1 - self.foreground) / self.background)

    def limited(self, foreground: float, background: float) -> tuple[float, float]:
        """Two rates, both reduced by the same factor where they exceed the ceiling together."""
        together = self.foreground * foreground + self.background * background
        return (foreground, background) if together <= 1 else (foreground / together, background / together)


EVEN = Ceiling()
"""The ceiling of two jobs that use a device equally well alone: together they take turns."""


@dataclass(frozen=True)
class Collocation:
    """Rules of sharing between a background and a foreground job. Source: DeepPool (MLSys 2022), sections 5 and 7.

    A launch is what the background gives to a device in one piece; what a launch has of a device it keeps until it is over
    (section 5: the scheduler on the device is not preemptive), and what of the device becomes free it gets as well.

    Attributes:
        priority: a launch gets what the foreground leaves of the device when it begins. Without it both run at the same pace,
            each at the rate 1 / (sum of demands) where that is more than the device has. Either way `Ceiling` holds.
        beside: launches begin beside the foreground's layers, in the share of the device that these leave ("Col"); otherwise only
            where the foreground computes nothing, and a launch takes the whole device.
        outstanding: launches that are given to a device at once. When one has begun, all of them come; behind the first of them
            priority is lost, because queues on the way to the device know none (section 5). "Launch pacing" (section 7.2) keeps this
            low; DeepPool does not say how low.
        launch_s: the most that one launch lasts alone on the device: longer ones are divided (CUDA graphs in groups, section 5).
            None: a layer's forward, or its backward, is a launch.
        collective_slowdown: how many times as long a collective takes while a background job runs on one of its devices. "More
            than doubles in execution time" (section 5): 2 is the least that this can mean.
        compute_slowdown: the same of both jobs' layers, beyond what shares explain (caches, memory). The paper gives no number.
        slowdown_limit: layers and collectives of the foreground that are seen to take more than so many times as long as alone are
            left alone: no launch begins while they run ("slowdown feedback loop", sections 5 and 7.2; no number is given).
        least_share: of a device, that a launch begins with: one of an A100's 108 multiprocessors.
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
            raise InputError("outstanding", str(self.outstanding), "at least one launch")
        if self.launch_s is not None and not self.launch_s > 0:
            raise InputError("launch_s", str(self.launch_s), "seconds > 0")
        if not 0 < self.least_share <= 1:
            raise InputError("least_share", str(self.least_share), "more than 0, at most 1")

    def share(self, foreground: float, background: float, ceiling: Ceiling) -> float:
        """Share of a device for a launch that does not slow the foreground; without priority, its full demand.

        Arguments:
            foreground, background: demands of both; 0 for a foreground that computes nothing.
        """
        if not self.priority or foreground <= 0:
            return background
        return max(0.0, min(background, 1 - foreground, background * ceiling.room))

    def rates(
        self, foreground: float, background: float, share: float | None, ceiling: Ceiling = EVEN
    ) -> tuple[float, float]:
        """Rates of two jobs on one device, 1 as if alone; together never above the ceiling.

        Arguments:
            foreground, background: demands of both; 0 for a foreground that computes nothing.
            share: of the device, that the background's launch has and keeps; None where no priority keeps the two apart.
        """
        if foreground <= 0:
            return 1.0, 1.0 if share is None else share / background
        if share is None:
            ours = theirs = 1 / max(1.0, foreground + background)
        else:
            ours, theirs = min(1.0, max(0.0, 1 - share) / foreground), share / background
        ours, theirs = ceiling.limited(ours, theirs)
        return ours / self.compute_slowdown, theirs / self.compute_slowdown
