"""Figures of a run that callbacks receive; no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class StepInfo:
    """State of a run after a step, as callbacks receive it.

    Attributes:
        step: number of steps trained, including steps before a resume.
        steps: number of steps at the end of the run.
        samples: number of samples trained, including samples before a resume.
        loss: mean loss of the step, the number that is printed; nan if it is no number. None before the first step.
        learning_rates: learning rate of each parameter group of the optimizer; None for a group without `lr`. The whole
            tuple is None before the first step, and if the optimizer has step hooks or its own scheduler.
        gradient_norm: norm of all gradients before clipping. None without `Job.clip_grad_norm` over the model, unless
            a callback of the job asks for it (`wants_gradient_norm`).
        step_s: seconds since the loss of the step before was known, without the time of a checkpoint; None if unknown.
        samples_per_s: samples of the step, divided by `step_s`.
        tokens_per_s: tokens that count in the loss of the step, divided by `step_s`. None unless
            `Job.loss_weight` is `hocket.tokens(...)`.
        mfu: model FLOPs utilization in `step_s`, 0 to 1: the model's operations in a step, relative to what all devices
            compute at their peak rates. None if a peak rate is unknown.
        checkpoint: path of the newest checkpoint; None if there is none.
        error: in `on_end`, the reason why the run ended early; None if it did not.
        evaluates: names of the figures of the run's evaluations: "loss", and the metrics; empty without evaluations.
    """

    step: int
    steps: int
    samples: int
    loss: float | None = None
    learning_rates: tuple[float | None, ...] | None = None
    gradient_norm: float | None = None
    step_s: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    checkpoint: str | None = None
    error: str | None = None
    evaluates: tuple[str, ...] = field(default=(), repr=False)

    def weights(self, ema: bool = False) -> "Mapping[str, Tensor]":
        """Return the whole weights and buffers of the newest checkpoint, by name; each tensor is read when it is used.

        In `on_checkpoint` they are the weights after `step`. Tied weights are there once, under one of their names. The
        first call imports torch.

        Arguments:
            ema: True for the moving averages of the weights (`Job.ema`).

        Raises:
            InputError: no checkpoint was saved before, it was removed or damaged since, or it has no averages.
        """
        if self.checkpoint is None:
            step = "Train with --checkpoint DIR, and ask in on_checkpoint."
            raise InputError("StepInfo.weights", "no checkpoint yet", "a checkpoint to read the weights from", step)
        from hocket.runtime.checkpoint.checkpoint import Checkpoint, verify
        from hocket.runtime.checkpoint.export.stored_weights import StoredWeights

        path = Path(self.checkpoint)
        return StoredWeights(Checkpoint(path, verify(path)), ema)
