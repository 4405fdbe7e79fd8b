"""Loss weights on one device, summed from microbatches to updates.

Only a device that computes losses has loss weights. Every microbatch is counted once, even if its forward is
recomputed. A segment is one run of the program: prologue, some periods, epilogue.
"""

from hocket.profiling.job.loss_weight import Batch, loss_weight
from hocket.program.rule import Rule
from hocket.runtime.stage.data_stream import Stream


class LossWeights:
    """Loss weights of a device's microbatches (`Job.loss_weight`).

    The weight of merged microbatches is stored under the first of them.
    """

    def __init__(self, rule: Rule, stream: Stream) -> None:
        """Create the sums, without any microbatch.

        Arguments:
            rule: update rule of the program.
            stream: data of the segment.
        """
        self._rule, self.stream = rule, stream
        self._known: dict[int, float] = {}

    @property
    def summed(self) -> bool:
        """True if the job computes loss weights, so that updates need their sums."""
        return callable(self.stream.job.loss_weight)

    def begin(self, stream: Stream) -> None:
        """Begin a segment; microbatches are counted from 0 again."""
        self.stream = stream
        self._known.clear()

    def note(self, microbatch: int, merged: int, batch: Batch) -> None:
        """Store the loss weight of a loaded microbatch, or of merged microbatches."""
        if self.summed:
            samples = self.stream.samples(microbatch, merged)
            self._known[microbatch] = loss_weight(self.stream.job, batch, samples)

    def of(self, microbatch: int, merged: int = 1) -> float:
        """Return the weight of a microbatch's loss; by default its number of samples.

        If the weight must be computed and no stage of this device has loaded the microbatch, it is loaded here.
        """
        if not self.summed:
            return self.stream.samples(microbatch, merged)
        if microbatch not in self._known:
            self.note(microbatch, merged, self.stream.batch(microbatch, merged))
        return self._known[microbatch]

    def take(self, update: int) -> float:
        """Return the sum of the loss weights of an update on this device, and forget them."""
        return sum(self._known.pop(m, 0.0) for m in self._rule.microbatches(0, update))
