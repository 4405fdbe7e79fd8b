"""Costs of burst-parallel plans: seconds and bytes by unit and number of devices.

A unit is a run of layers that stay together, nearly always a single layer. Counts are the possible numbers of devices
of a unit. Arrays have the shape (units, counts). The device with the largest share of the batch determines the costs.
The order of units is not known here.

Source: DeepPool, section 4.1 (comp, comm, sync), with the optimizer step and memory added.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hocket.cost.compute import Columns, type_factor
from hocket.cost.transfer import collective
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster
from hocket.profiling.profile import ModelProfile
from hocket.program.instruction import Kind
from hocket.strategies.burst.redistribution import Moves, moves, moves_aside


@dataclass(frozen=True)
class Edge:
    """Bytes of one sample that go from one unit to another: activations and gradients."""

    forward_bytes: float
    backward_bytes: float

    def __add__(self, other: "Edge") -> "Edge":
        return Edge(self.forward_bytes + other.forward_bytes, self.backward_bytes + other.backward_bytes)


NOTHING = Edge(0.0, 0.0)


class BurstCosts:
    """Costs of the units of one profile, for one batch size and cluster.

    Arguments:
        batch_size: samples of a batch.
        counts: possible numbers of devices of a unit, ascending, at most the devices of the cluster and the samples
            of a batch.
        units: the layers of each unit.
        bucket_bytes: size of a gradient bucket; 0 for an all-reduce of each unit by itself.

    Attributes:
        shares: samples of the device with the largest share, for each count.
        layer_comp_s: seconds of forward, backward and step of each layer; shape (layers, counts).
        comp_s: the same for each unit.
        alone_s: seconds of forward, backward and step of each unit on one device; shape (units,).
        sync_s: seconds of the all-reduce of each unit's gradients.
        own_s: comp_s + sync_s.

    Raises:
        InputError: a layer with weights has 0 s in the profile, or the profile's device type cannot be compared with
            the cluster's.
    """

    def __init__(
        self,
        profile: ModelProfile,
        cluster: Cluster,
        batch_size: int,
        counts: Sequence[int],
        units: Sequence[Sequence[int]],
        bucket_bytes: float = 0.0,
    ) -> None:
        self._bucket_bytes = bucket_bytes
        self.profile, self.cluster, self.batch_size = profile, cluster, batch_size
        self.counts, self.units = np.array(counts), tuple(tuple(unit) for unit in units)
        self.shares = -(-batch_size // self.counts)
        self._sums = np.array([unit[0] for unit in self.units])
        self.layer_comp_s = self._seconds_at(self.shares, tuple(int(count) for count in self.counts))
        self.comp_s = self._per_unit(self.layer_comp_s)
        self.alone_s = self._per_unit(self._seconds_at(np.array([batch_size]), (1,)))[:, 0]
        self.sync_s = self._sync_s()
        self.own_s = self.comp_s + self.sync_s

    def on(self, counts: Sequence[int]) -> "BurstCosts":
        """Costs of the same units for other possible numbers of devices."""
        return BurstCosts(self.profile, self.cluster, self.batch_size, counts, self.units, self._bucket_bytes)

    def _per_unit(self, figures: np.ndarray) -> np.ndarray:
        """Sum over the layers of each unit: from shape (layers, ...) to (units, ...)."""
        whole: np.ndarray = np.add.reduceat(figures, self._sums, axis=0)
        return whole

    def _seconds_at(self, samples: np.ndarray, counts: Sequence[int]) -> np.ndarray:
        """Seconds of forward, backward and step of every layer; shape (layers, entries of `samples`).

        A layer on n devices runs on the first n devices of the cluster. The slowest of these devices sets the time.

        Arguments:
            samples: samples that each device computes.
            counts: number of devices for each entry of `samples`.
        """
        found: np.ndarray | None = None
        for first, table in self._types:
            own = table.at(samples)
            if found is None:
                found = own
            else:
                present = np.array([count > first for count in counts])
                found = np.where(present, np.maximum(found, own), found)
        assert found is not None
        return found

    @cached_property
    def _types(self) -> "list[tuple[int, _Seconds]]":
        """For each device type, its first device and the seconds of layers on it."""
        seen: dict[str, int] = {}
        for device in range(self.cluster.devices) if self.cluster.nodes else (0,):
            seen.setdefault(self.cluster.node_of(device).device_type, device)
        return [(device, _Seconds.on(self.profile, self.cluster, name)) for name, device in seen.items()]

    def _sync_s(self) -> np.ndarray:
        """Seconds of a ring all-reduce of each unit's gradients; shape (units, counts).

        The latency is shared among the units of a bucket, in proportion to their bytes.
        """
        sizes = np.array([self._gradients_bytes(unit) for unit in self.units])
        found = np.zeros((len(self.units), len(self.counts)))
        begun = np.minimum(sizes / self._bucket_bytes, 1.0) if self._bucket_bytes else 1.0
        for k, count in enumerate(self.counts):
            latency_s, per_byte_s = _ring(self.cluster, int(count))
            found[:, k] = np.where(sizes > 0, begun * latency_s + sizes * per_byte_s, 0.0)
        return found

    def _gradients_bytes(self, unit: Sequence[int]) -> float:
        layers, seen, total = self.profile.layers, set[str](), 0.0
        for i in unit:
            if not (layers[i].parameters and seen.issuperset(layers[i].parameters)):
                total += layers[i].gradients_bytes
                seen.update(layers[i].parameters)
        return total

    @cached_property
    def _moves(self) -> Moves:
        return moves(self.cluster, self.batch_size, tuple(int(count) for count in self.counts))

    @cached_property
    def _moves_aside(self) -> Moves:
        return moves_aside(self.cluster, self.batch_size, tuple(int(count) for count in self.counts))

    def transfer_s(self, edge: Edge, aside: bool = False) -> np.ndarray:
        """Seconds of an edge, forward and backward together; shape (counts, counts).

        Rows are numbers of devices of the source, columns of the target.

        Arguments:
            aside: True if the two sets of devices are disjoint.
        """
        found = np.zeros((len(self.counts),) * 2)
        for size_bytes in filter(None, (edge.forward_bytes, edge.backward_bytes)):
            found = found + (self._moves_aside if aside else self._moves).seconds(size_bytes)
        return found

    @cached_property
    def held_bytes(self) -> np.ndarray:
        """Bytes that one device of a unit holds; shape (units, counts).

        They are weights, gradients, optimizer state, buffers and the device's share of the saved activations.
        """
        layers = self.profile.layers
        fixed = np.array(
            [
                self.profile.weights_bytes(unit)
                + self._gradients_bytes(unit)
                + sum(layers[i].optimizer_bytes + layers[i].buffers_bytes for i in unit)
                for unit in self.units
            ]
        )
        stash = self._per_unit(_at(self.profile, "stash_bytes", self.shares))
        whole: np.ndarray = fixed[:, None] + stash
        return whole

    @cached_property
    def capacity_bytes(self) -> float:
        """Bytes of memory of the smallest device."""
        devices = range(self.cluster.devices) if self.cluster.nodes else (0,)
        return min(self.cluster.capacity_bytes(device) for device in devices)


@dataclass(frozen=True)
class _Seconds:
    """Seconds of layers on one device type: measured there, or scaled by a factor."""

    profile: ModelProfile
    factor: float

    @classmethod
    def on(cls, profile: ModelProfile, cluster: Cluster, name: str) -> "_Seconds":
        known = Columns(profile).on(name)
        if known is not None:
            return cls(known.profile, 1.0)
        return cls(profile, type_factor(profile.device_type, profile.dtype, cluster, name))

    def at(self, samples: np.ndarray) -> np.ndarray:
        """Seconds of forward, backward and step of every layer on one device.

        Arguments:
            samples: numbers of samples that the device computes.

        Returns:
            Shape (layers, entries of `samples`).

        Raises:
            InputError: a layer with weights has 0 s.
        """
        turn = _at(self.profile, "forward_s", samples) + _at(self.profile, "backward_s", samples)
        for i, layer in enumerate(self.profile.layers):
            if layer.gradients_bytes > 0 and not turn[i].min() > 0:
                size = int(samples[turn[i].argmin()])
                raise InputError(
                    f"layers.{i} ({layer.name})", f"0 s for {size} samples", "seconds above 0 for a layer with weights"
                )
        steps = np.array([layer.step_s for layer in self.profile.layers])
        whole: np.ndarray = self.factor * (turn + steps[:, None])
        return whole


def _at(profile: ModelProfile, name: str, samples: np.ndarray) -> np.ndarray:
    """Values of one field of every layer at several numbers of samples.

    Above the largest profiled size, values grow in proportion to the samples. A line through the last two sizes would
    amplify measurement noise.

    Arguments:
        name: field of a layer, such as "forward_s".

    Returns:
        Shape (layers, entries of `samples`).
    """
    largest = profile.microbatch_sizes[-1]
    known = {
        int(size): profile.column(name, min(int(size), largest)) * max(1.0, size / largest) for size in set(samples)
    }
    return np.stack([known[int(size)] for size in samples], axis=1)


def _ring(cluster: Cluster, count: int) -> tuple[float, float]:
    """Latency in seconds and seconds per byte of an all-reduce.

    Arguments:
        count: number of devices in it, from the first of the cluster on.
    """
    time = collective(cluster, Kind.ALL_REDUCE, tuple(range(count)), 1.0)
    return time.latency_s, time.flow_s
