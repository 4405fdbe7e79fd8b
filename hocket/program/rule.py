"""Rule: weight version of each microbatch, and microbatches of each update.

Every strategy declares its rule. `check` proves that a program follows it, and every run is compared with a plain
single-process loop that applies it. One formula covers all kinds:

    version(stage, microbatch) = max(0, microbatch // batch[stage] - delay[stage])

A weight version is the number of updates that the weights contain.

Kind `evaluation` is for programs that run forwards only: all of them on the weights that are there, and no updates.

Kind `averaged` is for two waves that hold the same layers and run half of each batch in turn. A step uses the
gradients of its own half and of the half before, which the other wave computed on its own weights.

Sources:
- sync, stashed, vertical, delayed (2BW) and naive ("without weight stashing"): Narayanan's dissertation, sections
  3.2.2 (sync), 2.4.3 (stashed, vertical, naive) and 3.2.1 (delayed).
- averaged: Wang et al., Wavelet (MLSys 2021), figure 9 and equation 1.
"""

from dataclasses import dataclass

from hocket.errors import InputError

WAVES = 2
"""Number of waves under the rule `averaged`."""
KINDS = ("sync", "stashed", "vertical", "delayed", "naive", "averaged", "evaluation")


@dataclass(frozen=True)
class Rule:
    """Update rule that a strategy declares.

    Attributes:
        kind: one of KINDS.
        batch: for each stage, the number of consecutive microbatches that one update averages over. Under `evaluation`
            it is the number of microbatches of a period.
        delay: for each stage, the updates by which the forward's weights lag behind the newest ones in the steady
            state.
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

    @property
    def trains(self) -> bool:
        """True if there are backwards and updates; False if all microbatches run on the same weights."""
        return self.kind != "evaluation"

    def updates(self, stage: int, microbatches: int) -> int:
        """Number of updates of a stage in a number of microbatches, rounded down."""
        return microbatches // self.batch[stage] if self.trains else 0

    def version(self, stage: int, microbatch: int) -> int:
        """Weight version that the forward of a microbatch uses.

        The version is the number of updates that the weights contain.
        """
        if not self.trains:
            return 0
        return max(0, microbatch // self.batch[stage] - self.delay[stage])

    def backward_version(self, stage: int, microbatch: int) -> int:
        """Weight version that the backward of a microbatch uses.

        The version is the forward's, except under `naive`, where it is the newest.
        """
        if self.kind == "naive":
            return microbatch // self.batch[stage]
        return self.version(stage, microbatch)

    def update(self, stage: int, microbatch: int) -> int:
        """Number of the update that applies a microbatch's gradient."""
        return microbatch // self.batch[stage]

    def microbatches(self, stage: int, update: int) -> range:
        """Indices of the microbatches that a stage runs for one update.

        The update applies the mean gradient of these microbatches. Under `averaged`, the mean gradient is averaged with
        the gradient of the half batch before.
        """
        first, count = update * self.batch[stage], self.batch[stage]
        if self.kind == "averaged":
            count //= WAVES
            first += stage * count
        return range(first, first + count)

    def takes(self, stage: int, microbatch: int) -> bool:
        """True if a stage runs a microbatch; under `averaged`, a wave runs only its half."""
        return self.kind != "averaged" or microbatch in self.microbatches(stage, self.update(stage, microbatch))

    def before(self, stage: int, update: int) -> tuple[int, int] | None:
        """The (stage, update) that an update averages its gradient with (`averaged`).

        Returns:
            None under other rules, and for the first update.
        """
        if self.kind != "averaged" or (stage, update) == (0, 0):
            return None
        return (0, update) if stage else (1, update - 1)

    def staleness(self, stage: int) -> int:
        """Steady-state staleness of gradients, in updates.

        Staleness counts the updates between the weights that a gradient was computed with and the weights that it is
        applied to.
        """
        return self.delay[stage]

    @property
    def synchronous(self) -> bool:
        """True if every gradient is computed with the newest weights, as in one process."""
        return self.kind != "averaged" and all(d == 0 for d in self.delay)

    @property
    def at_one_moment(self) -> bool:
        """True if all stages update at one moment, after the same microbatches.

        The update happens before any stage continues.
        """
        return self.synchronous and len(set(self.batch)) == 1
