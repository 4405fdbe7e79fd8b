"""Floor: seconds that no cut of a model into stages on unlike devices is below.

Rules of this file: a model is an embedding, blocks alike, and an output; stages stand in runs on one type each. Closed form, so that
thousands of ways are put in order without a stage of any.

Stage r computes x_r seconds for a microbatch, in t_r turns, behind what the first one needs to come to it, and the first device's
step is behind all: t_r x_r + sum of x before r + step <= T. Its x_r / c_r blocks are at most as many as any y >= 0 allows (weak
duality of linear programs) for which y_r t_r + sum of y behind r >= 1 / c_r; y that makes this equal is known in closed form for
a run of stages alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.recompute_cut import RecomputeCut


class StageRun(NamedTuple):
    """Stages one behind the other on one type, each with as many replicas."""

    kind: int
    width: int
    stages: int


@dataclass(frozen=True)
class TypeBound:
    """Bounds at one microbatch size, one number for each type.

    Attributes:
        blocks: of the model. block_s, first_s, last_s: of a microbatch in a block, in the embedding, in the output.
        step_s, first_step_s: of the optimizer for a block and for the embedding; call_s: of any step.
    """

    blocks: int
    block_s: Sequence[float]
    first_s: Sequence[float]
    last_s: Sequence[float]
    step_s: Sequence[float]
    first_step_s: Sequence[float]
    call_s: Sequence[float]

    @classmethod
    def of(cls, tailor: RecomputeCut, samples: int) -> "TypeBound":
        """Bounds for the layers that a RecomputeCut divides."""
        figures, on = tailor.figures(samples), [one.profile for one in tailor.columns]
        first_s, last_s = figures.ends_s.T.tolist()
        first_step_s, step_s = ([one.layers[k].step_s for one in on] for k in (0, 1))
        call_s = [one.step_call_s for one in on]
        block_s = figures.block_s.min(axis=0).tolist()
        return cls(figures.blocks, block_s, first_s, last_s, step_s, first_step_s, call_s)

    def seconds(self, runs: Sequence[StageRun], microbatches: int, mesh: ParallelLayout) -> float:
        """Seconds of a layout with its stages on these runs of devices, in order.

        Arguments:
            microbatches: of the batch, of all replicas.
        """
        head, tail = runs[0], runs[-1]
        ends = self.first_s[head.kind] / self.block_s[head.kind] + self.last_s[tail.kind] / self.block_s[tail.kind]
        if mesh.stale or mesh.chunks > 1:  # as if nothing were filled: each device is busy all the time
            rate = sum(stages * width / self.block_s[kind] for kind, width, stages in runs)
            return microbatches * (self.blocks + ends) / rate
        behind = 0.0  # the sum of y
        for k, (kind, width, stages) in reversed(list(enumerate(runs))):
            most = 1 / self.block_s[kind]
            if behind < most:
                behind = most - (most - behind) * (1 - width / microbatches) ** (stages - (k == 0))
        parts = head.width if mesh.sharded else 1
        block_s, step_s = self.block_s[head.kind], self.step_s[head.kind] / parts
        more = step_s / block_s
        behind += max(0.0, (1 / block_s - behind * (1 + more)) / (microbatches / head.width + more))
        fixed_s = self.first_step_s[head.kind] / parts + self.call_s[head.kind] - more * self.first_s[head.kind]
        return (self.blocks + ends) / behind + fixed_s
