"""Figures of an evaluation that callbacks receive; no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class EvaluationInfo:
    """Result of one evaluation, as callbacks receive it in `on_evaluation`.

    Attributes:
        step: number of steps trained before the evaluation.
        steps: number of steps at the end of the run.
        samples: number of samples trained.
        loss: mean loss over all samples of the evaluation; nan if it is no number.
        metrics: mean of each metric, by name; nan if it is no number.
        best_loss: lowest loss of the run's evaluations so far, this one included; nan if none is a number.
        best_step: step of the evaluation with this loss.
        evaluation_s: seconds of the evaluation.
    """

    step: int
    steps: int
    samples: int
    loss: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    best_loss: float = float("nan")
    best_step: int = 0
    evaluation_s: float = 0.0
