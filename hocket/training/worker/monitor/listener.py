"""Listener: output of a run for people and machines, and the final summary.

This file has no torch and no I/O.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, isnan
from typing import Any, Protocol

from hocket.hardware.link_sums import LinkSums
from hocket.training.callbacks.evaluation_info import EvaluationInfo

_QUEUED = 0.1  # share of an iteration above which waits for cores are reported


@dataclass(frozen=True)
class RunSummary:
    """Result of a run.

    Attributes:
        steps: total number of steps trained.
        losses: mean loss of each step of this run, in order.
        iteration_s: median seconds of a batch, over warm periods (without the first two, prologue and epilogue). None
            if no period was measured.
        samples_per_s: throughput at this time of a batch; None if no period was measured.
        predicted_iteration_s: the plan's prediction.
        peak_memory_bytes: measured peak memory, by device of the plan.
        predicted_peak_memory_bytes: peak memory that the plan predicts, by device, for devices with a prediction.
        stopped: True if the run ended early on request.
        checkpoint: path of the newest checkpoint, if any.
        checkpoint_steps: steps trained in that checkpoint, which are fewer than `steps` if weights were not finite.
        warm_steps: number of steps in the median of `iteration_s`.
        queued_share: largest share of an iteration for which a worker waited for a CPU core, 0 to 1.
        saving_s: seconds that steps waited for checkpoints, on the worker that waited longest.
        skipped: updates that were skipped because gradients were nan or infinite (on_nan="skip", or float16).
        loss_scale: loss scale at the end, of a job in float16; None otherwise.
        optimizer: name of the optimizer's class.
        dtype: compute dtype.
        device_types: device types of the workers, named as in profiles, each once.
        swaps: bytes and seconds of swaps, by device of the plan.
        evaluations: results of the evaluations of this run, in order.
        mfu: model FLOPs utilization, 0 to 1: the model's operations in a step, relative to what the devices compute at
            their peak rates in the time of a batch. None if a peak rate is unknown or no period was measured.
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
    checkpoint_steps: int | None = None
    warm_steps: float = 0.0
    queued_share: float = 0.0
    saving_s: float = 0.0
    skipped: int = 0
    loss_scale: float | None = None
    optimizer: str = ""
    dtype: str = ""
    device_types: tuple[str, ...] = ()
    swaps: dict[int, LinkSums] = field(default_factory=dict, repr=False)
    evaluations: tuple[EvaluationInfo, ...] = field(default=(), repr=False)
    mfu: float | None = None

    @property
    def queued(self) -> str:
        """Note on long waits for CPU cores; empty without long waits."""
        if self.iteration_s is None or self.queued_share <= _QUEUED:
            return ""
        return f"for up to {self.queued_share:.0%} of an iteration, a worker waited for a core that other threads used"

    @property
    def saved(self) -> str:
        """Note on the folder in which the run is saved, or that it is not."""
        if self.checkpoint is None:
            return "not saved; no checkpoint was made"
        if self.checkpoint_steps == self.steps:
            return f"saved in {self.checkpoint}"
        return f"not saved; the newest checkpoint is {self.checkpoint}"

    @property
    def stop(self) -> str:
        """Note on a run that was stopped before its last step, by Ctrl-C or a signal."""
        on = "" if self.checkpoint is None else "; --resume goes on"
        return f"stopped after step {self.steps}, {self.saved}{on}"

    def line(self) -> dict[str, Any]:
        """Return the summary as the last line of JSON output."""
        paces = ("iteration_s", "samples_per_s", "predicted_iteration_s", "queued_share")
        names = (*paces, "steps", "stopped", "skipped", "checkpoint")
        by_device = {
            name: {str(device): size for device, size in sorted(getattr(self, name).items())}
            for name in ("peak_memory_bytes", "predicted_peak_memory_bytes")
        }
        found = {name: getattr(self, name) for name in names} | by_device
        found |= {name: getattr(self, name) for name in ("loss_scale", "mfu") if getattr(self, name) is not None}
        if not self.evaluations:
            return found
        last, best = self.evaluations[-1], best_of(self.evaluations)
        lowest = {"best_eval_loss": _number(best.loss), "best_eval_step": best.step}
        return found | {"eval_loss": _number(last.loss), "eval_metrics": _numbers(last.metrics)} | lowest


def best_of(evaluations: Sequence[EvaluationInfo]) -> EvaluationInfo:
    """Return the evaluation with the lowest loss, the first of several; a loss that is no number is the highest."""
    return min(evaluations, key=lambda one: (isnan(one.loss), one.loss))


def evaluation_line(info: EvaluationInfo) -> dict[str, Any]:
    """Return an evaluation as a line of JSON output."""
    figures = {"step": info.step, "eval_loss": _number(info.loss), "eval_metrics": _numbers(info.metrics)}
    return figures | {"eval_s": info.evaluation_s}


def _numbers(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _number(value) for name, value in values.items()}


def _number(value: float) -> float | None:
    return value if isfinite(value) else None


class Listener(Protocol):
    """Receiver of a run's steps, notes, checkpoints and summary, such as a progress bar."""

    def started(self, first: int, steps: int, predicted_iteration_s: float | None, peak_step_s: float | None) -> None:
        """Report that training begins.

        Arguments:
            first: number of steps trained before.
            steps: number of steps at the end of the run.
            predicted_iteration_s: the plan's prediction; None if it has none.
            peak_step_s: seconds of a step at the devices' peak rates; None if a peak rate is unknown.
        """

    def step(self, line: dict[str, Any]) -> None:
        """Report a step.

        Arguments:
            line: {"step": number of steps trained, "loss": mean loss over the samples of this step, "samples": total
                number of samples trained, "lr": learning rate of each parameter group, "gradient_norm": norm of all
                gradients before clipping, "tokens": number of tokens that count in the loss of this step}. The key "lr"
                is absent if the job's optimizer has step hooks or its own scheduler, because these may change the
                rates; "gradient_norm" if the norm is not computed; "tokens" unless `Job.loss_weight` is
                `hocket.tokens(...)`.
        """

    def evaluated(self, info: EvaluationInfo) -> None:
        """Report an evaluation, after the step before it."""

    def saved(self, step: int, path: str) -> None:
        """Report that a checkpoint after `step` steps was saved in the folder `path`."""

    def note(self, text: str) -> None:
        """Receive a text for people."""

    def finished(self, summary: RunSummary) -> None:
        """Receive the summary of a run that ended successfully."""

    def close(self) -> None:
        """End the output, whether the run was successful or not."""


@dataclass
class Quiet:
    """Listener that shows nothing; it only passes each step to `on_step`."""

    on_step: Callable[[dict[str, Any]], None] | None = None

    def started(self, first: int, steps: int, predicted_iteration_s: float | None, peak_step_s: float | None) -> None:
        """Show nothing."""

    def step(self, line: dict[str, Any]) -> None:
        """Pass the step to `on_step`."""
        if self.on_step is not None:
            self.on_step(line)

    def evaluated(self, info: EvaluationInfo) -> None:
        """Show nothing."""

    def saved(self, step: int, path: str) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def finished(self, summary: RunSummary) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Close nothing."""


class Noting(Quiet):
    """Listener that passes only notes to another listener."""

    def __init__(self, other: Listener) -> None:
        super().__init__()
        self._other = other

    def note(self, text: str) -> None:
        """Pass the note on."""
        self._other.note(text)
