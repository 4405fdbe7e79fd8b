"""Demand: the share of a device that a layer needs while it runs.

Another job can have the rest. A layer's share is the larger of two:

- its speed relative to its best speed (samples per second, at the measured microbatch size with the most; figure 4 of
  DeepPool shows this for a whole model),
- the bytes of its own weights relative to the bytes that the device's memory moves in that time (a forward reads them;
  a backward reads them and writes gradients).

One number stands for processors and memory, so that predictions err to the slow side. The share is 1 for a profile with
one microbatch size, for a step, and for time that belongs to no layer. On a CPU, every share is 1: if a small
microbatch takes relatively longer there, the threads are busy in that time.
Source: Park et al., DeepPool (MLSys 2022), sections 2 and 5. Deriving the share from a profile is Hocket's own method.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from hocket.cost.compute import Columns
from hocket.hardware.cluster import Cluster
from hocket.profiling.profile import CPU
from hocket.program.instruction import Instruction, Kind
from hocket.program.passes.borders import StageCut


class LayerDemand(NamedTuple):
    """One layer of a forward or backward, or an instruction without layers.

    Attributes:
        fraction: fraction of the instruction's seconds.
        demand: share of the device, 0 to 1.
        layer: index of the layer, -1 for none.
    """

    fraction: float
    demand: float
    layer: int = -1


WHOLE = (LayerDemand(1.0, 1.0),)


class LayerCosts(Protocol):
    """Interface of a cost model for device shares.

    It has costs of layers by device, and layers of stages.
    """

    @property
    def cluster(self) -> Cluster:
        """Devices and their types."""

    @property
    def cuts(self) -> Sequence[StageCut]:
        """Layers by stage."""

    @property
    def samples(self) -> Sequence[int]:
        """Samples of each microbatch."""

    def columns_on(self, device: int) -> Columns:
        """Costs of all layers on a device."""

    def ready_fractions(self, stage: int, samples: int) -> Sequence[float]:
        """Time of each bucket in a backward, as a fraction of the backward."""


def demands(columns: Columns, samples: int, memory_bandwidth_bytes_per_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Shares of a device by layer, for forwards and for backwards of a microbatch.

    Returns:
        Two arrays of shape (layers,).
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
    """A compute instruction layer by layer, in the order of time.

    Arguments:
        first, last: for a backward, the buckets between which it is considered (simulation/engine/nodes.py); (-1, -1)
            for all of it.

    Returns:
        Layers with fractions that sum to 1.
    """
    if instruction.kind not in (Kind.FORWARD, Kind.BACKWARD):
        return WHOLE
    columns, layers = costs.columns_on(instruction.device), costs.cuts[instruction.stage].layers
    figures = columns.at(samples)
    bandwidth = costs.cluster.type_of(instruction.device).memory_bandwidth_bytes_per_s
    shares = demands(columns, samples, bandwidth)
    if costs.cluster.type_of(instruction.device).name == CPU:
        shares = np.ones_like(shares[0]), np.ones_like(shares[1])
    if instruction.kind is Kind.FORWARD:
        return _between(layers, figures.forward_s, shares[0], 0.0, 1.0)
    ready = costs.ready_fractions(instruction.stage, samples) if (first, last) != (-1, -1) else ()
    begin = ready[first] if first >= 0 else 0.0
    end = ready[last] if last >= 0 else 1.0
    return _between(layers[::-1], figures.backward_s, shares[1], begin, end)


def mean_demand(costs: LayerCosts, instruction: Instruction) -> float:
    """Mean share of its device that a compute instruction needs."""
    return sum(work.fraction * work.demand for work in works(costs, instruction, max(costs.samples)))


def _between(
    layers: Sequence[int], seconds: np.ndarray, shares: np.ndarray, begin: float, end: float
) -> tuple[LayerDemand, ...]:
    """Parts of consecutive layers between two fractions of their total time."""
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
