"""Seconds of transfers alone on their links: messages, ring collectives and swaps.

Rules of this file: a time has two parts, a latency in which no bytes move, and the seconds in which bytes move at the
link's full bandwidth. `contention.py` decides how concurrent transfers share the link in the second part.
Source: t(n) = alpha + n / beta; ring collectives as in hardware/links.py (`ring_all_reduce_s`).
"""

from collections import Counter
from typing import NamedTuple

from hocket.errors import InputError
from hocket.hardware.cluster import HALF, Cluster
from hocket.program.instruction import Kind


class TransferTime(NamedTuple):
    """Seconds before bytes flow (latency), and seconds of flow at full bandwidth."""

    latency_s: float
    flow_s: float


def message(cluster: Cluster, source: int, target: int, size_bytes: float) -> TransferTime:
    """Time of one message between two devices over their nearest common level."""
    link = cluster.link_between(source, target)
    # The sender's compute lane has already spent `post_s`, which is part of the link's latency.
    return TransferTime(max(0.0, link.latency_s - cluster.post_s), size_bytes / link.bandwidth_bytes_per_s)


# Number of rounds of a ring collective, of (ranks - 1) steps each. An all-reduce is a reduce-scatter and an
# all-gather.
_ROUNDS = {Kind.ALL_REDUCE: 2, Kind.REDUCE_SCATTER: 1, Kind.ALL_GATHER: 1}


def ring_bytes(kind: Kind, members: int, size_bytes: float) -> float:
    """Bytes that every rank of a ring collective sends to its neighbour.

    Arguments:
        kind: ALL_REDUCE, REDUCE_SCATTER or ALL_GATHER.
        members: number of ranks.
        size_bytes: bytes of the whole tensor.
    """
    return _ROUNDS[kind] * (members - 1) / members * size_bytes


def collective(
    cluster: Cluster, kind: Kind, group: tuple[int, ...], size_bytes: float, threads: int = 0
) -> TransferTime:
    """Time of a ring collective of one bucket.

    Latency and bandwidth are those of the outermost level that the group spans. A reduce-scatter or an all-gather
    takes half of the time of an all-reduce, or the measured share (`Level.reduce_scatter`, `Level.all_gather`). If
    contention with computation was measured (`Level.overlap`), an all-reduce takes its measured time alone. If each
    device of a component has its own link to other components, several rings run in parallel, each with a part of the
    bytes (NCCL's channels). Inside the component, all rings use the same links.

    Arguments:
        kind: all-reduce, reduce-scatter or all-gather.
        group: devices of the ring.
        size_bytes: bytes of the whole bucket.
        threads: communication threads; 0 for the library's default.
    """
    members = len(group)
    if members < 2:
        return TransferTime(0.0, 0.0)
    level = cluster.level_of(group)
    found = cluster.levels[level]
    share = {Kind.REDUCE_SCATTER: found.reduce_scatter, Kind.ALL_GATHER: found.all_gather}.get(kind)
    if found.overlap is not None:
        model = found.overlap.on(members)
        moved_s = model.carried_bytes(size_bytes) / model.alone.at(threads or model.own_threads)
        part = 1.0 if kind is Kind.ALL_REDUCE else share or HALF
        return TransferTime(part * model.startup_s, part * moved_s)
    link = cluster.levels[level].all_reduce or cluster.levels[level].link
    rate = link.bandwidth_bytes_per_s
    if not cluster.levels[level].shared:
        rings = min(Counter(cluster.component(device, level) for device in group).values())
        inside = [(below.all_reduce or below.link).bandwidth_bytes_per_s for below in cluster.levels[:level]]
        rate = max(rate, min([rings * rate, *inside]))
    times = 1.0 if share is None else share / HALF
    steps = _ROUNDS[kind] * (members - 1)
    return TransferTime(times * steps * link.latency_s, times * ring_bytes(kind, members, size_bytes) / rate)


def swap(cluster: Cluster, device: int, size_bytes: float) -> TransferTime:
    """Time of one swap between a device and its host."""
    link, _ = cluster.host_link_of(device)
    return TransferTime(link.latency_s, size_bytes / link.bandwidth_bytes_per_s)


def ring_hops(group: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Pairs of a rank and the next one in the ring of a collective.

    Every rank sends to the next, the last one to the first.

    Raises:
        InputError: a device is in the group twice.
    """
    if len(set(group)) != len(group):
        raise InputError("group", str(group), "each device once")
    return tuple(zip(group, (*group[1:], group[0]), strict=True)) if len(group) > 1 else ()
