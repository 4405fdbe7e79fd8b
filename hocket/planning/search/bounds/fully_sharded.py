"""Lower bound for FSDP units.

Units follow each other on the same replicas. Each is whole only during its computation.

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
    """Figures of the layers, each of which is one FSDP unit; shape (layers,).

    Attributes:
        weights, gradients: bytes of weights, and of gradients.
        compute_s: seconds of forward and backward of the slowest replica.
        backward_s: seconds of the backward of the slowest replica.
        step_s: seconds of the optimizer step on one replica's shard.
    """

    weights: np.ndarray
    gradients: np.ndarray
    compute_s: np.ndarray
    backward_s: np.ndarray
    step_s: Sequence[float]


def units_s(units: Units, cluster: Cluster, place: tuple[int, ...], microbatches: int) -> float:
    """Lower bound on the seconds of a batch.

    It is the larger of two sums. The first is a replica's computation, with the gradient sum, optimizer step and
    gather of the first unit, which lie between its last backward and its next forward. The second is all gathers.

    Arguments:
        place: devices of the replicas.
        microbatches: number of microbatches of each replica in a batch.
    """
    gathers_s = [sum(collective(cluster, Kind.ALL_GATHER, place, float(size))) for size in units.weights]
    summed_s = sum(collective(cluster, Kind.REDUCE_SCATTER, place, float(units.gradients[0])))
    computed_s = microbatches * float(units.compute_s.sum()) + sum(units.step_s)
    behind_s = max(0.0, summed_s - float(units.backward_s[0])) + gathers_s[0]
    return max(computed_s + behind_s, 2 * microbatches * sum(gathers_s))
