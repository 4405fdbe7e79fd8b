"""Demand: the share of a device that a layer needs while it runs.

Another job can have the rest of the device. A layer's demand is the larger of two shares:

- its throughput relative to its best throughput (in samples per second, over all measured microbatch sizes; figure 4
  of DeepPool shows this for a whole model),
- the bytes of its weights relative to the bytes that the device's memory moves in that time (a forward reads the
  weights; a backward reads them and writes gradients).

One number stands for processors and memory, so that predictions err to the slow side. The demand is 1 for a profile
with one microbatch size, for a step, and for time that belongs to no layer. On a CPU every demand is 1: if a small
microbatch takes relatively longer there, the threads are busy in that time.
Source: Park et al., DeepPool (MLSys 2022), sections 2 and 5. Deriving the share from a profile is Hocket's own method.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from hocket.cost.compute import Columns
from hocket.hardware.cluster import Cluster
from hocket.profiling.profile import is_cpu
from hocket.program.instruction import Instruction, Kind
from hocket.program.passes.borders import StageCut


class LayerDemand(NamedTuple):
    """One layer of a forward or backward, or an instruction without layers.

    Attributes:
        fraction: fraction of the instruction's seconds that the layer takes.
        demand: share of the device that the layer needs, 0 to 1.
        layer: index of the layer; -1 for an instruction without layers.
    """

    fraction: float
    demand: float
    layer: int = -1


WHOLE = (LayerDemand(1.0, 1.0),)


class LayerCosts(Protocol):
    """Interface of a cost model that this module needs."""

    @property
    def cluster(self) -> Cluster:
        """Cluster that the plan runs on: devices with their types."""

    @property
    def cuts(self) -> Sequence[StageCut]:
        """Stages of the plan: their layers and devices."""

    @property
    def samples(self) -> Sequence[int]:
        """Samples of each microbatch of a batch."""

    def columns_on(self, device: int) -> Columns:
        """Costs of all layers on a device."""

    def ready_fractions(self, stage: int, samples: int) -> Sequence[float]:
        """When each gradient bucket is complete, as a fraction of the backward."""


def demands(columns: Columns, samples: int, memory_bandwidth_bytes_per_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Demand of every layer: the share of a device that it needs.

    Arguments:
        columns: costs of the layers on the device.
        samples: samples of the microbatch.
        memory_bandwidth_bytes_per_s: bandwidth of the device's memory.

    Returns:
        Demands of the forward and of the backward; two arrays of shape (layers,).
    """
    profile, figures = columns.profile, columns.at(samples)
    sizes = profile.microbatch_sizes
    weights = np.array([layer.weights_bytes for layer in profile.layers])
    gradients = np.array([layer.gradients_bytes for layer in profile.layers])
    found = []
    for name, seconds, moved in (
        ("forward_s", figures.forward_s, weights),
        ("backward_s", figures.backward_s, weights + gradients),
    ):
        least_s = np.min([profile.column(name, size) / size for size in sizes], axis=0) * samples
        needed_s = np.maximum(least_s, moved / memory_bandwidth_bytes_per_s)
        shares = np.divide(needed_s, seconds, out=np.zeros_like(needed_s), where=seconds > 0)
        found.append(np.minimum(shares, 1.0))
    return found[0], found[1]


def works(
    costs: LayerCosts, instruction: Instruction, samples: int, first: int = -1, last: int = -1
) -> tuple[LayerDemand, ...]:
    """Layers of a compute instruction in the order of time, with their demands.

    Arguments:
        samples: samples of the instruction's microbatches.
        first, last: for a part of a backward, the gradient buckets after which the part begins and ends; -1 for begin
            and end of the backward (`Signature` in simulation/engine/nodes.py).

    Returns:
        Layers with fractions that sum to 1.
    """
    if instruction.kind not in (Kind.FORWARD, Kind.BACKWARD):
        return WHOLE
    columns, layers = costs.columns_on(instruction.device), costs.cuts[instruction.stage].layers
    figures = columns.at(samples)
    bandwidth = costs.cluster.type_of(instruction.device).memory_bandwidth_bytes_per_s
    shares = demands(columns, samples, bandwidth)
    if is_cpu(costs.cluster.type_of(instruction.device).name):
        shares = np.ones_like(shares[0]), np.ones_like(shares[1])
    if instruction.kind is Kind.FORWARD:
        return _between(layers, figures.forward_s, shares[0], 0.0, 1.0)
    ready = costs.ready_fractions(instruction.stage, samples) if (first, last) != (-1, -1) else ()
    begin = ready[first] if first >= 0 else 0.0
    end = ready[last] if last >= 0 else 1.0
    return _between(layers[::-1], figures.backward_s, shares[1], begin, end)


def mean_demand(costs: LayerCosts, instruction: Instruction) -> float:
    """Mean share of its device that a compute instruction needs, from 0 to 1.

    It is the share for the largest microbatch of a batch.
    """
    return sum(work.fraction * work.demand for work in works(costs, instruction, max(costs.samples)))


def _between(
    layers: Sequence[int], seconds: np.ndarray, shares: np.ndarray, begin: float, end: float
) -> tuple[LayerDemand, ...]:
    """Layers that run between two fractions of the total time of some layers.

    Arguments:
        layers: the layers in the order in which they run.
        seconds, shares: seconds and demand of every layer of the profile.
        begin, end: the two fractions, 0 to 1.
    """
    total = float(seconds[list(layers)].sum())
    if total <= 0 or end <= begin:
        return WHOLE
    found, at = [], 0.0
    for layer in layers:
        until = at + float(seconds[layer]) / total
        part = min(until, end) - max(at, begin)
        if part > 1e-12:
            found.append(LayerDemand(part / (end - begin), float(shares[layer]), layer))
        at = until
    return tuple(found) or WHOLE
