"""Ground: the groups that a pipeline's stages stand on, as bounds see them.

Rules of this file: what is said of a stage with unlike replicas holds for the slowest of them where they wait for each other,
and for the quickest where a microbatch passes one of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from hocket.hardware.cluster import Cluster

Places = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Ground:
    """Of p stages; arrays of shape (p,).

    Attributes:
        widths: groups of each. has: whether one of them is of a type, shape (types, p). room_bytes: of the smallest.
        border_s: what a message to the next stage takes at least, of the last to the first, and more for each byte; shape (2, p).
    """

    widths: np.ndarray
    has: np.ndarray
    room_bytes: np.ndarray
    border_s: np.ndarray

    @classmethod
    def of(cls, cluster: Cluster, places: Places, types: np.ndarray, room_bytes: np.ndarray) -> "Ground":
        """Of some places in a cluster.

        Arguments:
            types, room_bytes: of every group of the cluster.
        """
        has = np.zeros((int(types.max()) + 1, len(places)), dtype=bool)
        for s, place in enumerate(places):
            has[types[list(place)], s] = True
        room = np.array([room_bytes[list(place)].min() for place in places])
        links = [cluster.link_between(a[0], b[0]) for a, b in pairwise((*places, places[0]))]
        latency_s = [max(0.0, link.latency_s - cluster.post_s) for link in links]
        # Where the sender copies its messages, or stages differ in their replicas, nothing is said of them.
        even = not cluster.sender_copies and len({len(place) for place in places}) == 1
        border_s = np.array([latency_s, [1 / link.bandwidth_bytes_per_s for link in links]]) * even
        return cls(np.array([len(place) for place in places]), has, room, border_s)

    def slowest(self, seconds: np.ndarray) -> np.ndarray:
        """Of every stage's seconds on each type, shape (types, stages), those of its slowest replica."""
        return self._of(seconds, np.max, -np.inf)

    def quickest(self, seconds: np.ndarray) -> np.ndarray:
        """The same of its quickest."""
        return self._of(seconds, np.min, np.inf)

    def _of(self, seconds: np.ndarray, which: Callable[..., Any], nothing: float) -> np.ndarray:
        if len(seconds) == 1:
            first: np.ndarray = seconds[0]
            return first
        has = np.tile(self.has, seconds.shape[1] // self.has.shape[1])
        found: np.ndarray = which(np.where(has, seconds, nothing), axis=0)
        return found

    def flying(self, turns: np.ndarray) -> np.ndarray:
        """Microbatches between forward and backward on each replica in 1F1B (strategies/_orders.py), of so many in all."""
        behind = np.cumsum(self.widths[::-1])[::-1]
        found: np.ndarray = np.minimum(turns, -(-behind // self.widths))
        return found

    def message_s(self, size_bytes: np.ndarray) -> np.ndarray:
        """Seconds of a message of so many bytes behind each stage but the last, forth and another back."""
        rank = np.arange(len(size_bytes)) % len(self.widths)
        found: np.ndarray = 2 * (self.border_s[0, rank] + size_bytes * self.border_s[1, rank])
        return found
