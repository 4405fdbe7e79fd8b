"""Listener: output of a run for people and machines, and the final summary.

Rules of this file: no torch, no I/O.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from hocket.hardware.link_sums import LinkSums

_QUEUED = 0.1  # of an iteration: what workers may wait for a core before it is told


@dataclass(frozen=True)
class RunSummary:
    """Result of a run.

    Attributes:
        steps: steps trained in all; losses: mean loss of each step of this run, in order.
        iteration_s: median seconds for `batch_size` samples over warm periods, prologue and epilogue left out; None when
            nothing was trained, or no such period. samples_per_s: at that pace. predicted_iteration_s: what the plan says.
        peak_memory_bytes: by device of the plan; predicted_peak_memory_bytes: what the plan says, where it says it.
        stopped: whether it ended early because it was asked to; checkpoint: the newest one, if any.
        queued_share: share of that time for which the worker that waited longest for a core had none.
        skipped: updates that were left out because gradients were not finite (on_nan="skip").
        warm_steps: what `iteration_s` is the median of; optimizer, dtype, device_types: names of what trained, of the type that it
            computed in and of devices, as a profile has them. swaps: what they took, by device of the plan.
    """

    steps: int
    losses: tuple[float, ...] = field(default=(), repr=False)
    iteration_s: float | None = None
    samples_per_s: float | None = None
    predicted_iteration_s: float | None = None
    peak_memory_bytes: dict[int, int] = field(default_factory=dict)
    predicted_peak_memory_bytes: dict[int, float] = field(default_factory=dict)
    stopped: bool = False
    checkpoint: str | None = None
    warm_steps: float = 0.0
    queued_share: float = 0.0
    skipped: int = 0
    optimizer: str = ""
    dtype: str = ""
    device_types: tuple[str, ...] = ()
    swaps: dict[int, LinkSums] = field(default_factory=dict, repr=False)

    @property
    def queued(self) -> str:
        """Note on long waits of workers for cores; empty otherwise."""
        if self.iteration_s is None or self.queued_share <= _QUEUED:
            return ""
        return f"up to {self.queued_share:.0%} of an iteration a worker waited for a core that other threads had"

    def line(self) -> dict[str, Any]:
        """The last line for machines."""
        paces = ("iteration_s", "samples_per_s", "predicted_iteration_s", "queued_share")
        names = (*paces, "steps", "stopped", "skipped", "checkpoint")
        by_device = {
            name: {str(device): size for device, size in sorted(getattr(self, name).items())}
            for name in ("peak_memory_bytes", "predicted_peak_memory_bytes")
        }
        return {name: getattr(self, name) for name in names} | by_device


class Listener(Protocol):
    """Receiver of the events of a run."""

    def started(self, first: int, steps: int, predicted_iteration_s: float | None) -> None:
        """Training goes from step `first` to step `steps`."""

    def step(self, line: dict[str, Any]) -> None:
        """One more step.

        {"step": steps trained, "loss": mean over its samples, "samples": trained in all, "lr": learning rates of its
        updates by parameter group}; no "lr" if the job sets learning rates itself.
        """

    def saved(self, step: int, path: str) -> None:
        """A checkpoint of these steps was saved in this folder."""

    def note(self, text: str) -> None:
        """Something that a person should know."""

    def finished(self, summary: RunSummary) -> None:
        """The run ended successfully."""

    def close(self) -> None:
        """The run ended, successfully or not."""


@dataclass
class Quiet:
    """Shows nothing, or only hands each step on."""

    on_step: Callable[[dict[str, Any]], None] | None = None

    def started(self, first: int, steps: int, predicted_iteration_s: float | None) -> None:
        """Show nothing."""

    def step(self, line: dict[str, Any]) -> None:
        """Hand it on."""
        if self.on_step is not None:
            self.on_step(line)

    def saved(self, step: int, path: str) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def finished(self, summary: RunSummary) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Close nothing."""


class Noting(Quiet):
    """Shows notes, through another, and nothing of a training."""

    def __init__(self, other: Listener) -> None:
        super().__init__()
        self._other = other

    def note(self, text: str) -> None:
        """Show it."""
        self._other.note(text)
