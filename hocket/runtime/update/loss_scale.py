"""Scale: by what a microbatch's loss and a stage's summed gradients are multiplied.

What is wanted: update u of stage s uses the gradient of the mean loss over all samples of its microbatches,

    G[s, u] = sum over m of samples[m] / N[s, u] * g[m],    N[s, u] = sum of samples[m],  m in rule.microbatches(s, u)

where g[m] is the gradient of microbatch m's mean loss. A backward pass starts once, at the loss, but stages may average
over different numbers of microbatches (PipeDream: as many as they have replicas). So the loss is weighted by
samples[m] / K and the sums of each stage by K / N[s, u], for one K. Where all stages average over the same
microbatches, K = N[s, u] and the second factor is exactly one; this holds for every strategy but PipeDream with
unequal replication. There, K is the samples of one full update of the last stage.

A job with a `loss_weight` has weights instead of samples, whose sum N is known only when all microbatches of an update are loaded: K is
one, and the step divides by N (clipping.py); such a rule is synchronous. A loss that is a sum (`loss_weight="sum"`) is the mean times the
samples: its weight is batch / samples[m] times as large.

Under `averaged` an update uses the gradients of two halves of a batch, one behind the other, which always are as many samples as a
batch has: K = N = the batch. The very first has one half only, and is multiplied by what it lacks.
"""

from dataclasses import dataclass
from functools import cached_property

from hocket.profiling.job.loss_weight import SUM, LossWeight
from hocket.program.microbatches import Microbatches
from hocket.program.rule import Rule


@dataclass(frozen=True)
class Scale:
    """The two factors for the microbatches of a run and its rule.

    Attributes:
        loss_weight: of the job.
    """

    batches: Microbatches
    rule: Rule
    loss_weight: LossWeight | None = None

    @cached_property
    def uniform(self) -> bool:
        """True if all stages average over the same microbatches."""
        return len(set(self.rule.batch)) == 1

    def samples(self, stage: int, update: int) -> int:
        """N: samples of one update of one stage, over all replicas."""
        return sum(self.batches.samples(m) for m in self.rule.microbatches(stage, update))

    def loss(self, microbatch: int, merged: int = 1, weight: float | None = None) -> float:
        """Factor for the loss gradient of `merged` microbatches from this one.

        Arguments:
            weight: of that loss, where the job says what it is.
        """
        if callable(self.loss_weight):
            assert weight is not None
            return weight
        samples = self.batches.samples(microbatch, merged)
        # Of a sum the weight is that of a whole batch, however few samples it is of.
        counted = self.batches.batch_size if self.loss_weight == SUM else samples
        if self.rule.kind == "averaged":
            return counted / self.batches.batch_size
        if self.uniform:
            return counted / self.samples(0, self.rule.update(0, microbatch))
        return counted / (self.rule.batch[-1] * self.batches.size)

    def gradient(self, stage: int, update: int) -> float:
        """Factor of a stage's summed gradients before its step."""
        if self.rule.kind == "averaged" and self.rule.before(stage, update) is None:
            return self.batches.batch_size / self.samples(stage, update)
        if self.uniform:
            return 1.0
        return self.rule.batch[-1] * self.batches.size / self.samples(stage, update)
