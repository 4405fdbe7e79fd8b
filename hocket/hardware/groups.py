"""Tensor-parallel groups as the devices of a smaller cluster.

Rules of this file: a group of t devices is t neighbours in numbering order. A planner sees a cluster of n / t devices,
each with the memory of one rank. A message from one group to another is sent by every rank to its counterpart: whole,
or one t-th by each rank, which the receivers then gather (`slices`: the scatter/gather optimisation of Narayanan's
dissertation, section 4.4.1).
"""

from dataclasses import dataclass, replace

from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level, Link, Node


@dataclass(frozen=True)
class GroupTraffic:
    """Cost of collectives inside tensor-parallel groups.

    Attributes:
        link: latency and bandwidth of one step, on the outermost level that a group spans.
        width: ranks of a group.
        at_once: True if each rank gives its part to all others in one step, as with shared memory; False for the steps
            of a ring.
    """

    link: Link
    width: int
    at_once: bool = False

    @classmethod
    def of(cls, level: Level, width: int) -> "GroupTraffic":
        """Cost of collectives, in seconds, in tensor-parallel groups of `width` ranks.

        Arguments:
            level: the outermost level of the cluster that a group spans. Its links are the slowest ones of the group.
            width: ranks of a group.
        """
        return cls(level.members or level.all_reduce or level.link, width, level.members is not None)

    @property
    def steps(self) -> int:
        """Number of steps of an all-gather or a reduce-scatter."""
        return 1 if self.at_once else self.width - 1

    def gather_s(self, size_bytes: float) -> float:
        """Seconds of an all-gather or a reduce-scatter.

        Arguments:
            size_bytes: bytes of the whole tensor. Each rank has, or keeps, an equal part.
        """
        return self.steps * self.link.seconds(size_bytes * (self.width - 1) / self.width / self.steps)

    def all_reduce_s(self, size_bytes: float) -> float:
        """Seconds of an all-reduce: a reduce-scatter and an all-gather.

        With `at_once`, a group of two ranks exchanges the whole tensor in one step instead.

        Arguments:
            size_bytes: bytes of the tensor.
        """
        return self.link.seconds(size_bytes) if self.at_once and self.width == 2 else 2 * self.gather_s(size_bytes)


@dataclass(frozen=True)
class Grouped:
    """A cluster with tensor-parallel groups as its devices.

    Attributes:
        cluster: the smaller cluster; each of its devices is a group.
        inside: cost of collectives among the ranks of a group; None for groups of one.
        width: ranks of a group.
        slices: True if each rank sends only a slice of a message, for tensors that all ranks have (scatter/gather).
    """

    cluster: Cluster
    inside: GroupTraffic | None
    width: int
    slices: bool = False

    def all_reduce_s(self, size_bytes: float) -> float:
        """Seconds of an all-reduce among the ranks of a group; 0 for groups of one.

        Arguments:
            size_bytes: bytes of the tensor.
        """
        return self.inside.all_reduce_s(size_bytes) if self.inside else 0.0

    def gather_s(self, size_bytes: float) -> float:
        """Seconds of an all-gather or a reduce-scatter among the ranks of a group.

        Arguments:
            size_bytes: bytes of the whole tensor.

        Returns:
            0 for groups of one.
        """
        return self.inside.gather_s(size_bytes) if self.inside else 0.0


def grouped(cluster: Cluster, width: int, slices: bool = False) -> Grouped:
    """Turn groups of `width` neighbouring devices into the devices of a cluster.

    Arguments:
        width: ranks of a group (tensor-parallel size).
        slices: True if each rank sends only a slice of a message, for tensors that all ranks have (scatter/gather).

    Raises:
        InputError: groups of this width do not fit the levels, or have ranks of different types.
    """
    if width == 1:
        return Grouped(cluster, None, 1)
    left, levels, spanned = width, list[Level](), list[Level]()
    below = 1  # devices of a component of the level below
    for level in cluster.levels:
        inside, outside = _divided(level, left)
        left //= inside
        if inside > 1:
            spanned.append(level)
        if outside > 1 or (left == 1 and level is cluster.levels[-1] and not levels):
            own = GroupTraffic.of(spanned[-1], width)
            levels.append(_between(level, outside, own, min(width, below) if level.shared else 1, slices))
        below *= level.width
    if left > 1:
        raise InputError(
            "tensor",
            f"tensor-parallel size {width}",
            f"a divisor of {cluster.devices}, the number of devices in the cluster",
        )
    cores = cluster.host_cores / min(width, cluster.levels[0].width) if cluster.host_cores is not None else None
    whole = replace(cluster, levels=tuple(levels), nodes=_nodes(cluster, width), host_cores=cores)
    return Grouped(whole, GroupTraffic.of(spanned[-1], width), width, slices)


def fits(cluster: Cluster, width: int) -> bool:
    """True if the cluster can be divided into groups of `width` devices."""
    try:
        grouped(cluster, width)
    except InputError:
        return False
    return True


def _divided(level: Level, width: int) -> tuple[int, int]:
    """Components of a level inside one group, and number of groups in the level.

    Arguments:
        width: components of this level that a group still needs.

    Raises:
        InputError: neither of the two widths divides the other.
    """
    if level.width % width == 0:
        return width, level.width // width
    if width % level.width == 0:
        return level.width, 1
    expected = f"a divisor or a multiple of {level.width}, the width of level `{level.name}` in the cluster"
    raise InputError("tensor", f"tensor-parallel size {width}", expected)


def _between(level: Level, groups: int, inside: GroupTraffic, sharing: int, slices: bool) -> Level:
    """The level as groups see it: its figures for messages between two groups.

    Arguments:
        groups: number of groups that the new level joins.
        inside: cost of collectives inside a group.
        sharing: ranks of a group that send over one link.
        slices: True if each rank sends only a slice of a message (scatter/gather).
    """
    steps = level.all_reduce or level.link
    # Each rank reduces its own part, beside its own computation.
    all_reduce = Link(steps.bandwidth_bytes_per_s / sharing, steps.latency_s)
    overlap = level.overlap and level.overlap.scaled(1 / sharing, 1.0)
    if not slices:
        rate, latency_s = level.bandwidth_bytes_per_s / sharing, level.latency_s
    else:
        seconds = sharing / inside.width / level.bandwidth_bytes_per_s
        seconds += (inside.width - 1) / inside.width / inside.link.bandwidth_bytes_per_s
        rate, latency_s = 1 / seconds, level.latency_s + inside.steps * inside.link.latency_s
    return Level(
        level.name,
        groups,
        rate,
        latency_s,
        level.shared,
        all_reduce,
        overlap=overlap,
        reduce_scatter=level.reduce_scatter,
        all_gather=level.all_gather,
    )


def _nodes(cluster: Cluster, width: int) -> tuple[Node, ...]:
    for node in cluster.nodes:
        if node.devices % width:
            found = f"groups of {width} devices with {node.devices} of {node.device_type}"
            raise InputError("tensor", found, "groups of devices of one type")
    return tuple(replace(node, devices=node.devices // width) for node in cluster.nodes)
