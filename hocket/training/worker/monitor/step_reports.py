"""Reports of one step: the losses of its microbatches, from all workers that compute losses."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hocket.training.callbacks.step_info import StepInfo

NAN = float("nan")


@dataclass
class StepReports:
    """Reports on one step so far; some microbatches may be missing.

    Attributes:
        losses: (loss times weight, weight) of each microbatch.
        samples: number of samples of these microbatches.
        lr: learning rates by parameter group, if known.
        gradient_norm: norm of all gradients, if reported.
        at_s: time of the latest report, in seconds since 1970; None if unknown.
    """

    losses: dict[int, tuple[float, float]] = field(default_factory=dict)
    samples: int = 0
    lr: list[float | None] | None = None
    gradient_norm: float | None = None
    at_s: float | None = None

    def add(self, event: Mapping[str, Any]) -> None:
        """Add the report of one microbatch."""
        self.losses[int(event["microbatch"])] = number(event["sum"]), float(event["weight"])
        self.samples += int(event["samples"])
        self.lr = event.get("lr", self.lr)
        if "at_s" in event:
            self.at_s = max(self.at_s or 0.0, float(event["at_s"]))

    @property
    def loss(self) -> float:
        """Mean loss of the step; nan if all loss weights are 0, as in a single process."""
        # Add in the order of microbatches. Replicas and waves report in any order, and the order changes a sum's last
        # bit.
        total, weight = (sum(column) for column in zip(*(self.losses[m] for m in sorted(self.losses)), strict=True))
        return total / weight if weight else NAN

    @property
    def weight(self) -> float:
        """Sum of the loss weights, such as the number of tokens."""
        return sum(weight for _, weight in self.losses.values())

    def info(self, known: StepInfo, samples: int, took_s: float | None, counts_tokens: bool) -> StepInfo:
        """Return what callbacks see of the step, when all its reports are here.

        Arguments:
            known: step, number of samples trained, and newest checkpoint.
            samples: number of samples of the step.
            took_s: seconds of the step; None if unknown.
            counts_tokens: True if the loss weights are numbers of tokens.
        """
        return replace(
            known,
            loss=self.loss,
            learning_rates=None if self.lr is None else tuple(self.lr),
            gradient_norm=self.gradient_norm,
            step_s=took_s,
            samples_per_s=samples / took_s if took_s else None,
            tokens_per_s=self.weight / took_s if took_s and counts_tokens else None,
        )


def number(value: Any) -> float:
    """Read a number of a report; null is nan, because JSON has no nan."""
    return NAN if value is None else float(value)
