"""Stage placement: tensor-parallel groups of a pipeline's stages, for bounds.

Rules of this file: for a stage with replicas of different types, figures hold for the slowest replica where replicas
wait for each other, and for the fastest where a microbatch passes only one of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import lcm
from typing import Any

import numpy as np

from hocket.cost.contention import Resource, Use, collective_uses, transfer_uses
from hocket.cost.transfer import collective
from hocket.hardware.cluster import Cluster
from hocket.program.instruction import Kind

Places = tuple[tuple[int, ...], ...]
Between = dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[float, float]]


@dataclass(frozen=True)
class StagePlacement:
    """Placement of p stages; arrays of shape (p,).

    Attributes:
        widths: number of groups of each stage.
        has: True if some group of the stage has the device type, shape (types, p).
        room_bytes: memory of the stage's smallest device.
        border_s: least latency of a message to the next stage (of the last stage, to the first), and least seconds per
            byte, shape (2, p).
        shared_s: seconds on each link that several devices share, shape (4, links, p). Rows: per byte of all messages
            to the next stage and back; per byte that each stage all-reduces, reduce-scatters, all-gathers.
    """

    widths: np.ndarray
    has: np.ndarray
    room_bytes: np.ndarray
    border_s: np.ndarray
    shared_s: np.ndarray

    @classmethod
    def of(
        cls, cluster: Cluster, places: Places, types: np.ndarray, room_bytes: np.ndarray, known: "Between"
    ) -> "StagePlacement":
        """Placement on the devices of a cluster.

        Arguments:
            places: groups of each stage.
            types, room_bytes: index of the device type, and memory, of every group of the cluster.
            known: cache of latency and seconds per byte between two stages' groups; new entries are added.
        """
        has, room = np.zeros((int(types.max()) + 1, len(places)), dtype=bool), np.zeros(len(places))
        for s, place in enumerate(places):
            groups = slice(place[0], place[-1] + 1) if place[-1] - place[0] == len(place) - 1 else list(place)
            has[types[groups], s] = True
            room[s] = room_bytes[groups].min()
        pairs = list(pairwise((*places, places[0])))
        for pair in pairs:
            if pair not in known:
                known[pair] = _between(cluster, *pair)
        # Messages that the sender copies get a bound of 0.
        moves = not cluster.sender_copies
        border_s = np.array([known[pair] for pair in pairs]).T * moves
        shared_s = _shared_s(cluster, places) if moves else np.zeros((4, 1, len(places)))
        return cls(np.array([len(place) for place in places]), has, room, border_s, shared_s)

    def slowest(self, seconds: np.ndarray) -> np.ndarray:
        """Seconds of each stage's slowest replica.

        Arguments:
            seconds: seconds of each stage on each device type, shape (types, stages).
        """
        return self._of(seconds, np.max, -np.inf)

    def quickest(self, seconds: np.ndarray) -> np.ndarray:
        """Seconds of each stage's fastest replica.

        Arguments:
            seconds: seconds of each stage on each device type, shape (types, stages).
        """
        return self._of(seconds, np.min, np.inf)

    def _of(self, seconds: np.ndarray, which: Callable[..., Any], nothing: float) -> np.ndarray:
        if len(seconds) == 1:
            first: np.ndarray = seconds[0]
            return first
        if self._kinds is not None:
            alone: np.ndarray = seconds[np.resize(self._kinds, seconds.shape[1]), np.arange(seconds.shape[1])]
            return alone
        has = np.tile(self.has, seconds.shape[1] // self.has.shape[1])
        found: np.ndarray = which(np.where(has, seconds, nothing), axis=0)
        return found

    @cached_property
    def _kinds(self) -> np.ndarray | None:
        """Index of each stage's device type; None if a stage has several types."""
        return self.has.argmax(axis=0) if (self.has.sum(axis=0) == 1).all() else None

    def flying(self, turns: np.ndarray) -> np.ndarray:
        """Microbatches in flight on a replica of each stage in 1F1B.

        See strategies/base/orders.py.

        Arguments:
            turns: number of microbatches that each replica runs in a batch, the upper limit.
        """
        behind = np.cumsum(self.widths[::-1])[::-1]
        found: np.ndarray = np.minimum(turns, -(-behind // self.widths))
        return found

    def message_s(self, size_bytes: np.ndarray) -> np.ndarray:
        """Seconds of a message to the next stage and an equal one back, together.

        Arguments:
            size_bytes: bytes of the message, for each stage but the last.

        Returns:
            Seconds for each stage but the last.
        """
        rank = np.arange(len(size_bytes)) % len(self.widths)
        found: np.ndarray = 2 * (self.border_s[0, rank] + size_bytes * self.border_s[1, rank])
        return found

    def busiest_s(self, size_bytes: np.ndarray, carried_bytes: np.ndarray, microbatches: int) -> float:
        """Seconds that the busiest shared link carries data in a batch.

        Arguments:
            size_bytes: bytes of the message to the next stage, for each stage but the last.
            carried_bytes: bytes that each stage all-reduces, reduce-scatters and all-gathers, shape (3, p).
            microbatches: microbatches of a data-parallel rank; of the whole batch if stages differ in replicas.
        """
        rank = np.arange(len(size_bytes)) % len(self.widths)
        behind = np.bincount(rank, size_bytes, minlength=len(self.widths)) * microbatches
        return float((self.shared_s[0] @ behind + np.einsum("klp,kp->l", self.shared_s[1:], carried_bytes)).max())


def passed(here: tuple[int, ...], there: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Pairs of replicas of two stages that exchange microbatches.

    Replicas take turns, so each pair exchanges equally many.
    """
    return tuple((here[m % len(here)], there[m % len(there)]) for m in range(lcm(len(here), len(there))))


def _between(cluster: Cluster, here: tuple[int, ...], there: tuple[int, ...]) -> tuple[float, float]:
    """Least latency of a message between two places, and least seconds per byte."""
    levels = {cluster.level_between(*pair) for pair in passed(here, there)}
    links = [cluster.levels[level].link for level in levels]
    latency_s = min(max(0.0, link.latency_s - cluster.post_s) for link in links)
    return latency_s, min(1 / link.bandwidth_bytes_per_s for link in links)


_CARRIES = (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER, Kind.ALL_GATHER)


def _shared_s(cluster: Cluster, places: Places) -> np.ndarray:
    """Seconds that one byte of each stage's transfers keeps each shared link busy (`StagePlacement.shared_s`)."""
    found: dict[Resource, np.ndarray] = {}

    def add(uses: tuple[Use, ...], kind: int, stage: int, seconds: float) -> None:
        for use in uses:
            if use.governed and use.resource[0] != "pair":
                found.setdefault(use.resource, np.zeros((4, len(places))))[kind, stage] += seconds

    widths = {len(place) for place in places}
    width = widths.pop() if len(widths) == 1 else 1  # data-parallel ranks that divide the batch
    if any(level.shared and level.width > 1 for level in cluster.levels):
        for stage, (here, there) in enumerate(pairwise((*places, places[0]))):
            pairs = passed(here, there)
            for pair in pairs:
                if pair[0] != pair[1]:
                    for hop in (pair, pair[::-1]):
                        each_s = width / len(pairs) / cluster.link_between(*hop).bandwidth_bytes_per_s
                        add(transfer_uses(cluster, (hop,)), 0, stage, each_s)
            if len(here) > 1:
                for row, kind in enumerate(_CARRIES, start=1):
                    each_s = collective(cluster, kind, here, 1.0).flow_s
                    add(collective_uses(cluster, here), row, stage, each_s)
    return np.array(list(found.values()) or [np.zeros((4, len(places)))]).transpose(1, 0, 2)
