"""Rule: which weight version each microbatch uses, and which microbatches make up each update.

Every strategy declares its rule; `check` holds the program to it, and a plain single-process loop that applies it is
what every run is compared with. One formula covers all kinds:

    version(stage, microbatch) = max(0, microbatch // batch[stage] - delay[stage])

`averaged` is of two waves that hold the same layers and take half of each batch in turn: a step uses the gradients of its own half
and of the half before, which the other wave computed on weights of its own.

Sources: sync 3.2.2; stashed and vertical 2.4.3; delayed (2BW) 3.2.1; naive: 2.4.3, "without weight stashing";
averaged: Wang et al., Wavelet (MLSys 2021), figure 9 and equation 1.
"""

from dataclasses import dataclass

from hocket.errors import InputError

WAVES = 2
"""Of the rule `averaged`."""
KINDS = ("sync", "stashed", "vertical", "delayed", "naive", "averaged")


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
            raise InputError(
                "rule", f"{len(self.batch)} batches, {len(self.delay)} delays", "one batch and one delay for each stage"
            )
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
        """Microbatches of a stage in one update.

        The update applies their mean gradient; under `averaged`, together with the half before.
        """
        first, count = update * self.batch[stage], self.batch[stage]
        if self.kind == "averaged":
            count //= WAVES
            first += stage * count
        return range(first, first + count)

    def takes(self, stage: int, microbatch: int) -> bool:
        """True if a stage runs a microbatch. Each wave runs its own microbatches."""
        return self.kind != "averaged" or microbatch in self.microbatches(stage, self.update(stage, microbatch))

    def before(self, stage: int, update: int) -> tuple[int, int] | None:
        """The (stage, update) before this one under `averaged`: their gradients are averaged."""
        if self.kind != "averaged" or (stage, update) == (0, 0):
            return None
        return (0, update) if stage else (1, update - 1)

    def staleness(self, stage: int) -> int:
        """Updates between the weights a gradient was computed with and those it is applied to, once warm."""
        return self.delay[stage]

    @property
    def synchronous(self) -> bool:
        """True if every gradient is computed with the newest weights, as in one process."""
        return self.kind != "averaged" and all(d == 0 for d in self.delay)

    @property
    def at_one_moment(self) -> bool:
        """True if all stages update with gradients of the same microbatches before any stage continues."""
        return self.synchronous and len(set(self.batch)) == 1
