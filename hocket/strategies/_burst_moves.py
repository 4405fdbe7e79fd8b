"""Where the samples of a batch are when a layer runs on g devices, and what moves when the next one runs on h.

Rules of this file: a set of g devices is the first g by number (or as many further on), and position k of its tuple has the k-th
piece of the batch; pieces are as equal as they can be, the first ones longer by one. Positions follow the bits of the device's
number in reverse, so that a device of a smaller set has its first samples in a larger set, too: those stay where they are.
Source: DeepPool section 4.1 (`comm`: payload over bandwidth, and a delay), with what stays put left out.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from hocket.hardware.cluster import Cluster

_BITS = 17  # of a device's number: MAX_DEVICES


@dataclass(frozen=True)
class Moves:
    """Seconds of a transfer between sets of devices: latency_s + per_byte_s * (bytes of one sample); shape (counts, counts).

    `aside` is for sets that have no device in common.
    """

    latency_s: np.ndarray
    per_byte_s: np.ndarray
    aside_latency_s: np.ndarray
    aside_per_byte_s: np.ndarray

    def seconds(self, sample_bytes: float, aside: bool = False) -> np.ndarray:
        """From every number of devices (rows) to every other (columns), so many bytes a sample; one way."""
        latency_s, per_byte_s = (
            (self.aside_latency_s, self.aside_per_byte_s) if aside else (self.latency_s, self.per_byte_s)
        )
        whole: np.ndarray = latency_s + sample_bytes * per_byte_s
        return whole


@lru_cache(maxsize=4096)
def device_order(count: int, first: int = 0) -> tuple[int, ...]:
    """The devices of a set by position."""
    return tuple(first + r for r in sorted(range(count), key=_reversed_bits))


def _reversed_bits(number: int) -> int:
    return int(f"{number:0{_BITS}b}"[::-1], 2)


def moves(cluster: Cluster, batch_size: int, counts: tuple[int, ...]) -> Moves:
    """What moving samples between any two of these numbers of devices takes.

    All that moves is taken to pass over the outermost level that the two sets span; the device, or the component where its link is
    shared, that sends or receives most decides.

    Arguments:
        counts: ascending, none above the batch size or the number of devices.
    """
    n, most = len(counts), counts[-1]
    start, end = np.zeros((n, most), dtype=np.int64), np.zeros((n, most), dtype=np.int64)
    order = np.array(device_order(most))
    for a, count in enumerate(counts):
        each, more = divmod(batch_size, count)
        bounds = np.arange(count + 1) * each + np.minimum(np.arange(count + 1), more)
        own = order[order < count]
        start[a, own], end[a, own] = bounds[:-1], bounds[1:]
    share = end - start
    latency_s, per_byte_s, aside_latency_s, aside_per_byte_s = (np.zeros((n, n)) for _ in range(4))
    busiest = [
        [float(_together(share[a : a + 1], _width(cluster, k))[0]) for a in range(n)]
        for k in range(len(cluster.levels))
    ]
    for a, count in enumerate(counts):
        kept = np.minimum(end[a, :count], end[: a + 1, :count]) - np.maximum(start[a, :count], start[: a + 1, :count])
        np.maximum(kept, 0, out=kept)
        level = cluster.level_between(0, count - 1)
        out, into = (
            _together(whole - kept, _width(cluster, level)) for whole in (share[a, :count], share[: a + 1, :count])
        )
        moved = np.maximum(out, into)
        link = cluster.levels[level].link
        latency_s[a, : a + 1] = latency_s[: a + 1, a] = np.where(moved > 0, link.latency_s, 0.0)
        per_byte_s[a, : a + 1] = per_byte_s[: a + 1, a] = moved / link.bandwidth_bytes_per_s
        for b in range(a + 1):
            level = cluster.level_between(0, min(count + counts[b], cluster.devices) - 1)
            link = cluster.levels[level].link
            aside_latency_s[a, b] = aside_latency_s[b, a] = link.latency_s
            most_s = max(busiest[level][a], busiest[level][b]) / link.bandwidth_bytes_per_s
            aside_per_byte_s[a, b] = aside_per_byte_s[b, a] = most_s
    return Moves(latency_s, per_byte_s, aside_latency_s, aside_per_byte_s)


def _width(cluster: Cluster, level: int) -> int:
    """How many devices share one link at a level."""
    return prod(below.width for below in cluster.levels[:level]) if cluster.levels[level].shared else 1


def _together(samples: np.ndarray, width: int) -> np.ndarray:
    """The most samples that pass over one link; `samples` by device along the last axis, `width` devices share a link."""
    if width > 1:
        samples = np.add.reduceat(samples, np.arange(0, samples.shape[-1], width), axis=-1)
    most: np.ndarray = samples.max(axis=-1)
    return most
