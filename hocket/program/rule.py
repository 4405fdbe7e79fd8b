"""Rule: which weight version each microbatch uses, and which microbatches make up each update.

Every strategy declares its rule; `check` holds the program to it, and a plain single-process loop that applies it is
what every run is compared with. One formula covers the five kinds:

    version(stage, microbatch) = max(0, microbatch // batch[stage] - delay[stage])

Sources: sync 3.2.2; stashed and vertical 2.4.3; delayed (2BW) 3.2.1; naive: 2.4.3, "without weight stashing".
"""

from dataclasses import dataclass

from hocket.errors import InputError

KINDS = ("sync", "stashed", "vertical", "delayed", "naive")


@dataclass(frozen=True)
class Rule:
    """A declared update rule.

    Attributes:
        kind: one of KINDS.
        batch: per stage, how many consecutive microbatches one update averages over.
        delay: per stage, how many updates the forward lags behind the newest weights in the steady state.
    """

    kind: str
    batch: tuple[int, ...]
    delay: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError("rule", repr(self.kind), f"one of {', '.join(KINDS)}")
        if len(self.batch) != len(self.delay):
            raise InputError("rule", f"{len(self.batch)} batches, {len(self.delay)} delays", "one of each a stage")
        if any(b < 1 for b in self.batch) or any(d < 0 for d in self.delay):
            raise InputError("rule", f"batch {self.batch}, delay {self.delay}", "batch >= 1, delay >= 0")

    def version(self, stage: int, microbatch: int) -> int:
        """Weight version that the forward of a microbatch uses: the number of updates it contains."""
        return max(0, microbatch // self.batch[stage] - self.delay[stage])

    def backward_version(self, stage: int, microbatch: int) -> int:
        """Weight version that the backward uses: the forward's, but for `naive`, where it is the newest."""
        if self.kind == "naive":
            return microbatch // self.batch[stage]
        return self.version(stage, microbatch)

    def update(self, stage: int, microbatch: int) -> int:
        """Number of the update that a microbatch's gradient goes into."""
        return microbatch // self.batch[stage]

    def microbatches(self, stage: int, update: int) -> range:
        """The microbatches whose mean gradient makes one update."""
        return range(update * self.batch[stage], (update + 1) * self.batch[stage])

    def staleness(self, stage: int) -> int:
        """Updates between the weights a gradient was computed with and those it is applied to, once warm."""
        return self.delay[stage]

    @property
    def synchronous(self) -> bool:
        """Whether every gradient is computed with the newest weights, as by one process."""
        return all(d == 0 for d in self.delay)

    @property
    def at_one_moment(self) -> bool:
        """Whether all stages update with the gradients of the same microbatches, before any of them goes on."""
        return self.synchronous and len(set(self.batch)) == 1
