"""Lower bound over all cuts of a model into stages on a heterogeneous cluster.

Rules of this file: a model is an embedding, equal blocks, and an output. Stages on one device type follow each other;
they are called a run. The bound is in closed form, so that thousands of layouts are sorted without a cut of the model
into stages.

Let T be the seconds of an iteration. A device of stage r runs t_r microbatches, each in x_r seconds, after the first
microbatch has reached it. The optimizer step of the first stage follows everything, so that
t_r x_r + (sum of x before r) + step <= T. A block takes c_r seconds on stage r, so the stages hold a sum of x_r / c_r
blocks (embedding and output count as blocks). By weak duality of linear programs, this sum is at most (T - step) times
the sum of y, for any y >= 0 with y_r t_r + (sum of y after r) >= 1 / c_r. The y with equality is known in closed form
for a run of equal stages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.recompute_cut import RecomputeCut


class StageRun(NamedTuple):
    """Consecutive stages on one device type with equal numbers of replicas.

    Attributes:
        kind: index of the device type.
        width: replicas of each stage.
        stages: number of stages.
    """

    kind: int
    width: int
    stages: int


@dataclass(frozen=True)
class TypeBound:
    """Lower bounds of layouts on several device types, at one microbatch size.

    Attributes:
        blocks: number of the model's blocks.
        block_s, first_s, last_s: seconds of a microbatch in a block, the embedding and the output, by type.
        step_s, first_step_s: optimizer seconds of a block and of the embedding, by type.
        call_s: fixed seconds of an optimizer step, whatever its layers, by type.
    """

    blocks: int
    block_s: Sequence[float]
    first_s: Sequence[float]
    last_s: Sequence[float]
    step_s: Sequence[float]
    first_step_s: Sequence[float]
    call_s: Sequence[float]

    @classmethod
    def of(cls, recompute_cut: RecomputeCut, samples: int) -> "TypeBound":
        """Bounds for the layers that a recompute cut divides."""
        figures, on = recompute_cut.figures(samples), [one.profile for one in recompute_cut.columns]
        first_s, last_s = figures.ends_s.T.tolist()
        first_step_s, step_s = ([one.layers[k].step_s for one in on] for k in (0, 1))
        call_s = [one.step_call_s for one in on]
        block_s = figures.block_s.min(axis=0).tolist()
        return cls(figures.blocks, block_s, first_s, last_s, step_s, first_step_s, call_s)

    def seconds(self, runs: Sequence[StageRun], microbatches: int, mesh: ParallelLayout) -> float:
        """Lower bound of a layout's iteration time in seconds.

        Arguments:
            runs: the layout's stages, in pipeline order, as runs of consecutive stages on one device type.
            microbatches: microbatches of the batch, for all replicas together.
            mesh: the layout. Only its schedule, chunks and sharding are read.
        """
        head, tail = runs[0], runs[-1]
        ends = self.first_s[head.kind] / self.block_s[head.kind] + self.last_s[tail.kind] / self.block_s[tail.kind]
        if mesh.stale or mesh.chunks > 1:  # as if there were no warm-up: each device is always busy
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
