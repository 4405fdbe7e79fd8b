"""Loss factors: factors of a microbatch's loss and of a stage's summed gradients.

Update u of stage s must use the gradient of the mean loss over all samples of its microbatches,

    G[s, u] = sum over m of samples[m] / N[s, u] * g[m],    N[s, u] = sum of samples[m],  m in rule.microbatches(s, u)

where g[m] is the gradient of microbatch m's mean loss. A backward starts once, at the loss, but stages may average over
different numbers of microbatches (PipeDream: as many as they have replicas). So the loss is weighted by samples[m] / K,
and the sums of each stage by K / N[s, u], for one K. If all stages average over the same microbatches, K = N[s, u] and
the second factor is exactly one. This holds for every strategy except PipeDream with unequal replication. There, K is
the number of samples of one full update of the last stage.

A job with a `loss_weight` has weights in place of samples. Their sum N is known only when all microbatches of an update
are loaded. So K is one, and the step divides by N (clipping.py); the update rule must be synchronous. A loss that is a
sum (`loss_weight="sum"`) is the mean times the samples, so its factor is batch / samples[m] times as large.

With rule `averaged`, an update uses the gradients of two half-batches, one after the other. Together they always have
as many samples as a batch: K = N = the batch size. The very first update has only one half-batch, so its gradients are
scaled up to a whole batch.
"""

from dataclasses import dataclass
from functools import cached_property

from hocket.profiling.job.loss_weight import SUM, LossWeight
from hocket.program.microbatches import Microbatches
from hocket.program.rule import Rule
from hocket.runtime.update.loss.scaler import LossScaler


@dataclass(frozen=True)
class LossFactors:
    """Factors of losses and of summed gradients; see the module's docstring.

    Attributes:
        batches: division of each batch into microbatches.
        rule: update rule of the program.
        loss_weight: the job's loss weight.
        scaler: loss scale of a job in float16; it is a factor of all losses.
    """

    batches: Microbatches
    rule: Rule
    loss_weight: LossWeight | None = None
    scaler: LossScaler | None = None

    @cached_property
    def uniform(self) -> bool:
        """True if all stages average over the same microbatches."""
        return len(set(self.rule.batch)) == 1

    def samples(self, stage: int, update: int) -> int:
        """Return N: number of samples of one update of one stage, over all replicas."""
        return sum(self.batches.samples(m) for m in self.rule.microbatches(stage, update))

    def loss(self, microbatch: int, merged: int = 1, weight: float | None = None) -> float:
        """Compute the factor of a loss's gradient, with which the backward starts.

        It includes the loss scale, if there is one.

        Arguments:
            microbatch: the microbatch of the loss, or the first of merged microbatches.
            merged: number of microbatches of the loss.
            weight: weight of the loss, if the job defines loss weights by a function.
        """
        share = self._share(microbatch, merged, weight)
        return share if self.scaler is None else share * self.scaler.state.scale

    def _share(self, microbatch: int, merged: int, weight: float | None) -> float:
        if callable(self.loss_weight):
            assert weight is not None
            return weight
        samples = self.batches.samples(microbatch, merged)
        # A summed loss counts as a whole batch, however few samples it has.
        counted = self.batches.batch_size if self.loss_weight == SUM else samples
        if self.rule.kind == "averaged":
            return counted / self.batches.batch_size
        if self.uniform:
            return counted / self.samples(0, self.rule.update(0, microbatch))
        return counted / (self.rule.batch[-1] * self.batches.size)

    def gradient(self, stage: int, update: int) -> float:
        """Compute the factor of a stage's summed gradients before its step."""
        if self.rule.kind == "averaged" and self.rule.before(stage, update) is None:
            return self.batches.batch_size / self.samples(stage, update)
        if self.uniform:
            return 1.0
        return self.rule.batch[-1] * self.batches.size / self.samples(stage, update)
