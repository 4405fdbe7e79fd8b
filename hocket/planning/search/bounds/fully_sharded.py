"""The bound of units: layers that stand one behind the other on the same replicas, each whole only while it is computed with.

Source: docs/explanation/sharding.md (`full`); strategies/schedules/fully_sharded.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hocket.cost.transfer import collective
from hocket.hardware.cluster import Cluster
from hocket.program.instruction import Kind


@dataclass(frozen=True)
class Units:
    """Figures of each layer, which is a unit.

    Attributes:
        weights, gradients: bytes. compute_s: forward and backward of the slowest replica; backward_s: of it; step_s: of a part.
    """

    weights: np.ndarray
    gradients: np.ndarray
    compute_s: np.ndarray
    backward_s: np.ndarray
    step_s: Sequence[float]


def units_s(units: Units, cluster: Cluster, place: tuple[int, ...], microbatches: int) -> float:
    """Seconds of a batch at least: of what a replica computes and of what it gathers, each in turn.

    Between the last backward of the first unit and its next forward lie its sum, its step and its gather.
    """
    gathers_s = [sum(collective(cluster, Kind.ALL_GATHER, place, float(size))) for size in units.weights]
    summed_s = sum(collective(cluster, Kind.REDUCE_SCATTER, place, float(units.gradients[0])))
    computed_s = microbatches * float(units.compute_s.sum()) + sum(units.step_s)
    behind_s = max(0.0, summed_s - float(units.backward_s[0])) + gathers_s[0]
    return max(computed_s + behind_s, 2 * microbatches * sum(gathers_s))
