"""Redistribution of a batch between layers with different numbers of devices.

A layer on g devices uses the first g devices of the cluster, or g consecutive ones from a later device on. The batch
is divided into g shares, as equal as possible, like microbatches (program/microbatches.py). `device_order` says which
device has the k-th share. It follows the bit-reversed device numbers, so that the first samples of a device in a
smaller set are also on this device in a larger set and need not move.

Source: DeepPool, section 4.1 (`comm`: payload over bandwidth, and a delay), without the samples that need not move.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from hocket.hardware.cluster import Cluster

_BITS = 17  # number of bits of a device's number; MAX_DEVICES is 2**17


@dataclass(frozen=True)
class Moves:
    """Seconds to move a batch between two sets of devices, for all pairs of sizes.

    The seconds are latency_s + per_byte_s * (bytes of one sample). Both arrays have the shape (counts, counts).
    """

    latency_s: np.ndarray
    per_byte_s: np.ndarray

    def seconds(self, sample_bytes: float) -> np.ndarray:
        """Seconds of a transfer one way; shape (counts, counts).

        Rows are numbers of devices of the source, columns of the target.

        Arguments:
            sample_bytes: bytes of one sample.
        """
        whole: np.ndarray = self.latency_s + sample_bytes * self.per_byte_s
        return whole


@lru_cache(maxsize=4096)
def device_order(count: int, first: int = 0) -> tuple[int, ...]:
    """Devices of a set of `count` devices from `first` on, by share of the batch.

    Entry k is the device with the k-th share.
    """
    return tuple(first + r for r in sorted(range(count), key=_reversed_bits))


def _reversed_bits(number: int) -> int:
    return int(f"{number:0{_BITS}b}"[::-1], 2)


def moves(cluster: Cluster, batch_size: int, counts: tuple[int, ...]) -> Moves:
    """Seconds to move samples between sets that both begin with the first device.

    The model assumes that all moved samples pass over the outermost level that the two sets span. The busiest sender
    or receiver determines the time: a device, or a component of the level if its devices share one link.

    Arguments:
        counts: numbers of devices, ascending, at most the batch size and the number of devices.
    """
    start, end = _pieces(batch_size, counts)
    share, n = end - start, len(counts)
    latency_s, per_byte_s = np.zeros((n, n)), np.zeros((n, n))
    for a, count in enumerate(counts):
        kept = np.minimum(end[a, :count], end[: a + 1, :count]) - np.maximum(start[a, :count], start[: a + 1, :count])
        np.maximum(kept, 0, out=kept)
        level = cluster.level_between(0, count - 1)
        ways = (share[a, :count] - kept, share[: a + 1, :count] - kept)
        moved = np.maximum(*(_together(way, _width(cluster, level)) for way in ways))
        link = cluster.levels[level].link
        latency_s[a, : a + 1] = latency_s[: a + 1, a] = np.where(moved > 0, link.latency_s, 0.0)
        per_byte_s[a, : a + 1] = per_byte_s[: a + 1, a] = moved / link.bandwidth_bytes_per_s
    return Moves(latency_s, per_byte_s)


def moves_aside(cluster: Cluster, batch_size: int, counts: tuple[int, ...]) -> Moves:
    """Seconds to move samples between disjoint sets of devices; every sample moves.

    Arguments:
        counts: numbers of devices, ascending, at most the batch size and the number of devices.
    """
    start, end = _pieces(batch_size, counts)
    last = np.minimum(np.add.outer(counts, counts), cluster.devices) - 1
    latency_s, per_byte_s = np.zeros(last.shape), np.zeros(last.shape)
    beyond = 0  # number of devices in one component of the level inside; 0 for the innermost level
    for k, level in enumerate(cluster.levels):
        busiest = _together(end - start, _width(cluster, k)) / level.bandwidth_bytes_per_s
        here = last >= beyond
        latency_s = np.where(here, level.latency_s, latency_s)
        per_byte_s = np.where(here, np.maximum.outer(busiest, busiest), per_byte_s)
        beyond = max(beyond, 1) * level.width
    return Moves(latency_s, per_byte_s)


def _pieces(batch_size: int, counts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """First sample of each device, and the sample after its last.

    Both arrays have the shape (counts, devices). They are 0 for a device without samples.
    """
    start, end = (np.zeros((len(counts), counts[-1]), dtype=np.int64) for _ in range(2))
    order = np.array(device_order(counts[-1]))
    for a, count in enumerate(counts):
        bounds = -(-np.arange(count + 1) * batch_size // count)
        own = order[order < count]
        start[a, own], end[a, own] = bounds[:-1], bounds[1:]
    return start, end


def _width(cluster: Cluster, level: int) -> int:
    """Number of devices that share one link at a level; 1 if links are not shared."""
    return prod(below.width for below in cluster.levels[:level]) if cluster.levels[level].shared else 1


def _together(samples: np.ndarray, width: int) -> np.ndarray:
    """Maximum number of samples that pass over one link.

    Arguments:
        samples: number of samples of each device, along the last axis.
        width: number of devices that share a link.
    """
    if width > 1:
        samples = np.add.reduceat(samples, np.arange(0, samples.shape[-1], width), axis=-1)
    most: np.ndarray = samples.max(axis=-1)
    return most
