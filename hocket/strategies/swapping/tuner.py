"""Harmony's performance tuner: packs and microbatch size of forward and backward.

A pack is a run of layers that one task runs together. Forward and backward have separate packs and microbatch sizes
(Harmony, HotOS 2021). `plan_harmony` in search.py is the entry point. docs/explanation/harmony.md describes the model
and its guarantees.
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
    LayerProfile,
    Pack,
    Server,
    Sized,
    backward_bytes,
    forward_bytes,
    sized,
)


class Mode(StrEnum):
    """Division of work among devices.

    - DATA: each device runs all tasks on its share of the batch.
    - PIPELINE: each task runs on one device, with the whole batch. Devices take turns.
    """

    DATA = "data"
    PIPELINE = "pipeline"


@dataclass(frozen=True)
class Tasks:
    """Tasks of one direction, forward or backward.

    A pack runs all microbatches before the next pack does.

    Attributes:
        size: microbatch size.
        packs: the packs in the order of their layers.
    """

    size: int
    packs: tuple[Pack, ...]


@dataclass(frozen=True)
class HarmonyPlan:
    """Plan of the tuner: packs and microbatch sizes in both directions, with predicted seconds and bytes.

    Attributes:
        batch: samples of an iteration, over all devices.
        devices: number of devices.
        forward: tasks of all layers except the layers of the last backward pack, which recomputes them anyway.
        backward: tasks of all layers. They run from the last pack to the first, each followed by its optimizer step on
            the host.
        iteration_s: seconds of an iteration.
        peak_bytes: bytes of the task that needs most memory.
    """

    mode: Mode
    batch: int
    devices: int
    forward: Tasks
    backward: Tasks
    iteration_s: float
    peak_bytes: float


class Costs:
    """Seconds and bytes of plans for one batch on one server.

    Arguments:
        batch: samples of an iteration.

    Attributes:
        samples: samples of one device in data mode, of the batch in pipeline mode.
        weights: prefix sums over layers of weight bytes.
        steps: prefix sums over layers of step seconds.

    Raises:
        InputError: the batch cannot be divided among the devices in data mode, or pipeline mode has only one device.
    """

    def __init__(self, profile: LayerProfile, server: Server, batch: int, mode: Mode) -> None:
        alone = mode is Mode.DATA
        if batch < 1 or (alone and batch % server.devices):
            raise InputError("batch", str(batch), f"a multiple of {server.devices} devices", "Take a larger batch.")
        if not alone and server.devices < 2:
            raise InputError("mode", "a pipeline on one device", "data mode", "Use mode data.")
        self.profile, self.server, self.batch, self.mode = profile, server, batch, mode
        self.samples = batch // server.devices if alone else batch  # samples of one task
        self.weights = np.concatenate(([0.0], np.cumsum(profile.weights_bytes)))
        self.steps = np.concatenate(([0.0], np.cumsum(profile.step_s)))
        self._sized: dict[int, Sized] = {}

    @cached_property
    def sizes(self) -> list[int]:
        """Microbatch sizes that divide `samples`, up to the largest profiled size."""
        largest = int(max(self.profile.forward.sizes[-1], self.profile.backward.sizes[-1]))
        return [u for u in range(1, min(self.samples, largest) + 1) if self.samples % u == 0]

    def at(self, size: int) -> Sized:
        """Prefix sums at a microbatch size."""
        if size not in self._sized:
            self._sized[size] = sized(self.profile, size)
        return self._sized[size]

    def rates(self, tasks: int) -> tuple[float, float, float, float, float]:
        """Bandwidths for a plan with a number of tasks.

        Idle devices leave their share of the swap link and of the host to the others.

        Returns:
            Swap, peer and host bandwidth of one device in bytes a second, seconds of freeing, devices in use.
        """
        server = self.server
        used = server.devices if self.mode is Mode.DATA else min(server.devices, tasks)
        share = float(used)
        swap, host = server.swap_bytes_per_s / share, server.host_bytes_per_s / share
        return swap, server.peer_bytes_per_s, host, server.freeing_s, share

    def seconds(self, ahead: int, forward: Any, back: int, backward: Any) -> float:
        """Seconds of an iteration.

        Arguments:
            ahead: microbatch size of forwards.
            forward: ends of the forward packs (last layer + 1), after a 0; [0] for no packs.
            back: microbatch size of backwards.
            backward: ends of the backward packs, after a 0.
        """
        forward, backward = (
            np.asarray(ends, np.int64) for ends in (forward, backward)
        )  # numba would compile tuples again for each length
        first, second = self.at(ahead), self.at(back)
        sizes = (first.forward_s, first.border, second.forward_s, second.backward_s, second.border)
        counts = (self.samples // ahead, self.samples // back)
        costs, tasks = (self.weights, self.steps), len(forward) + len(backward) - 2
        if self.mode is Mode.DATA:
            return float(compiled.data_s(forward, backward, sizes, counts, costs, self.rates(tasks)))
        return float(compiled.pipeline_s(forward, backward, sizes, counts, costs, self.rates(tasks)))

    def peak_bytes(self, ahead: int, forward: Any, back: int, backward: Any) -> float:
        """Bytes of the task that needs most memory.

        Arguments:
            ahead: microbatch size of forwards.
            forward: ends of the forward packs (last layer + 1), after a 0; [0] for no packs.
            back: microbatch size of backwards.
            backward: ends of the backward packs, after a 0.
        """
        first, second, kept = self.at(ahead), self.at(back), [int(k) for k in backward[:-2]]
        peaks = [forward_bytes(first, Pack(a, e), kept) for a, e in pairwise(forward)]
        peaks += [backward_bytes(second, Pack(a, e)) for a, e in pairwise(backward)]
        return max(peaks)

    def plan(self, ahead: int, forward: Any, back: int, backward: Any) -> HarmonyPlan:
        """The plan with these packs.

        Arguments:
            ahead: microbatch size of forwards.
            forward: ends of the forward packs (last layer + 1), after a 0; [0] for no packs.
            back: microbatch size of backwards.
            backward: ends of the backward packs, after a 0.
        """
        return HarmonyPlan(
            self.mode,
            self.batch,
            self.server.devices,
            Tasks(ahead, packs_of(forward)),
            Tasks(back, packs_of(backward)),
            self.seconds(ahead, forward, back, backward),
            self.peak_bytes(ahead, forward, back, backward),
        )


def packs_of(cuts: Any) -> tuple[Pack, ...]:
    """Packs from their ends (last layer + 1), after a 0."""
    return tuple(Pack(int(a), int(e)) for a, e in pairwise(cuts))
