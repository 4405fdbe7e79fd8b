"""Loss weights on one device, from microbatches to the sum over an update.

Rules of this file: only a device that computes losses has any; every microbatch is counted once, however often its forward runs.
"""

from hocket.profiling.job.loss_weight import Batch, loss_weight
from hocket.program.rule import Rule
from hocket.runtime.stage.data_stream import Stream


class LossWeights:
    """Loss weights of a device's microbatches (`Job.loss_weight`).

    Bundles are stored under their first microbatch.
    """

    def __init__(self, rule: Rule, stream: Stream) -> None:
        """Start without weights.

        Arguments:
            stream: of the segment.
        """
        self._rule, self.stream = rule, stream
        self._known: dict[int, float] = {}

    @property
    def summed(self) -> bool:
        """True if updates need the sums of the loss weights."""
        return callable(self.stream.job.loss_weight)

    def begin(self, stream: Stream) -> None:
        """Another segment begins, whose microbatches are counted anew."""
        self.stream = stream
        self._known.clear()

    def note(self, microbatch: int, merged: int, batch: Batch) -> None:
        """Keep the weight of a microbatch that is loaded."""
        if self.summed:
            samples = self.stream.samples(microbatch, merged)
            self._known[microbatch] = loss_weight(self.stream.job, batch, samples)

    def of(self, microbatch: int, merged: int = 1) -> float:
        """The weight of a microbatch.

        Its batch is loaded if no stage of this device has loaded it.
        """
        if not self.summed:
            return self.stream.samples(microbatch, merged)
        if microbatch not in self._known:
            self.note(microbatch, merged, self.stream.batch(microbatch, merged))
        return self._known[microbatch]

    def take(self, update: int) -> float:
        """The sum over the microbatches of an update whose losses were computed here; they are forgotten."""
        return sum(self._known.pop(m, 0.0) for m in self._rule.microbatches(0, update))
