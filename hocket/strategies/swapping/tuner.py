"""Harmony's performance tuner: packs of layers and sizes of microbatches, forward and backward each its own (HotOS 2021).

`plan_harmony` in search.py is what others call; docs/explanation/harmony.md says what is counted and what is promised.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from hocket.errors import InputError
from hocket.strategies.swapping import numba_kernels as compiled
from hocket.strategies.swapping.costs import (
    Array,
    LayerProfile,
    Pack,
    Server,
    Sized,
    backward_bytes,
    forward_bytes,
    sized,
)


class Mode(StrEnum):
    """Division of work.

    Each device runs all tasks on its part of the batch, or tasks take turns on the whole batch.
    """

    DATA = "data"
    PIPELINE = "pipeline"


@dataclass(frozen=True)
class Tasks:
    """Tasks of one direction: packs in layer order, each run over all microbatches of one size before the next."""

    size: int
    packs: tuple[Pack, ...]


@dataclass(frozen=True)
class HarmonyPlan:
    """Result of the tuner.

    Attributes:
        forward: all layers but those of the last backward pack, whose backward recomputes them anyway.
        backward: all layers; run from the last pack to the first, each followed by its step on the host.
        batch: samples of an iteration, of all devices.
    """

    mode: Mode
    batch: int
    devices: int
    forward: Tasks
    backward: Tasks
    iteration_s: float
    peak_bytes: float


class Costs:
    """Seconds and bytes of plans for one batch on one server."""

    def __init__(self, profile: LayerProfile, server: Server, batch: int, mode: Mode) -> None:
        alone = mode is Mode.DATA
        if batch < 1 or (alone and batch % server.devices):
            raise InputError("batch", str(batch), f"a multiple of {server.devices} devices", "Take a larger batch.")
        if not alone and server.devices < 2:
            raise InputError("mode", "a pipeline on one device", "data mode", "Ask for data mode.")
        self.profile, self.server, self.batch, self.mode = profile, server, batch, mode
        self.samples = batch // server.devices if alone else batch  # what one task sees
        self.weights = np.concatenate(([0.0], np.cumsum(profile.weights_bytes)))
        self.steps = np.concatenate(([0.0], np.cumsum(profile.step_s)))
        self._sized: dict[int, Sized] = {}
        self._rooms: dict[tuple[int, int], Any] = {}

    @cached_property
    def sizes(self) -> list[int]:
        """Sizes of microbatches that divide the samples and were profiled in some direction."""
        largest = int(max(self.profile.forward.sizes[-1], self.profile.backward.sizes[-1]))
        return [u for u in range(1, min(self.samples, largest) + 1) if self.samples % u == 0]

    def at(self, size: int) -> Sized:
        """Prefix sums at a size of microbatches."""
        if size not in self._sized:
            self._sized[size] = sized(self.profile, size)
        return self._sized[size]

    def rates(self, tasks: int) -> tuple[float, float, float, float, float]:
        """Bytes per second and seconds of the cost model; idle devices leave their share of the swap link to others."""
        server = self.server
        used = server.devices if self.mode is Mode.DATA else min(server.devices, tasks)
        share = float(used)
        swap, host = server.swap_bytes_per_s / share, server.host_bytes_per_s / share
        return swap, server.peer_bytes_per_s, host, server.freeing_s, share

    def seconds(self, ahead: int, forward: Any, back: int, backward: Any) -> float:
        """Seconds of an iteration.

        Arguments:
            ahead, back: sizes of microbatches. forward, backward: ends of packs, 0 first (integers).
        """
        forward, backward = (np.asarray(ends, np.int64) for ends in (forward, backward))  # tuples compile once a length
        first, second = self.at(ahead), self.at(back)
        sizes = (first.forward_s, first.border, second.forward_s, second.backward_s, second.border)
        counts = (self.samples // ahead, self.samples // back)
        costs, tasks = (self.weights, self.steps), len(forward) + len(backward) - 2
        if self.mode is Mode.DATA:
            return float(compiled.data_s(forward, backward, sizes, counts, costs, self.rates(tasks)))
        rates = self.rates(tasks)
        source, room = self._room(ahead, back)
        return float(compiled.pipeline_s(forward, backward, sizes, counts, costs, rates, source, room))

    def peak_bytes(self, ahead: int, forward: Any, back: int, backward: Any) -> float:
        """Peak bytes of the fullest task."""
        first, second, kept = self.at(ahead), self.at(back), [int(k) for k in backward[:-2]]
        peaks = [forward_bytes(first, Pack(a, e), kept) for a, e in pairwise(forward)]
        peaks += [backward_bytes(second, Pack(a, e)) for a, e in pairwise(backward)]
        return max(peaks)

    def plan(self, ahead: int, forward: Any, back: int, backward: Any) -> HarmonyPlan:
        """A plan of these cuts."""
        return HarmonyPlan(
            self.mode,
            self.batch,
            self.server.devices,
            Tasks(ahead, packs_of(forward)),
            Tasks(back, packs_of(backward)),
            self.seconds(ahead, forward, back, backward),
            self.peak_bytes(ahead, forward, back, backward),
        )

    def _room(self, ahead: int, back: int) -> Any:
        if (ahead, back) not in self._rooms:
            most, layers = self.samples // min(ahead, back), self.profile.layers
            # the forward microbatch with the last sample of each backward one
            source = ((np.arange(self.samples // back, dtype=np.int64) + 1) * back - 1) // ahead
            room: tuple[Array, ...] = (
                np.zeros((6, self.server.devices)),
                np.zeros(most),
                np.zeros((layers, most)),
                np.zeros(most),
            )
            self._rooms[ahead, back] = source, room
        return self._rooms[ahead, back]


def packs_of(cuts: Any) -> tuple[Pack, ...]:
    """Packs between neighbouring cuts."""
    return tuple(Pack(int(a), int(e)) for a, e in pairwise(cuts))
