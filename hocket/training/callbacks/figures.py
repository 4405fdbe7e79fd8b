"""Names and values under which loggers write the figures of a step or of an evaluation."""

from collections.abc import Iterable

from hocket.profiling.data.evaluation import LOSS
from hocket.training.callbacks.evaluation_info import EvaluationInfo
from hocket.training.callbacks.step_info import StepInfo


def figures_of(info: StepInfo) -> dict[str, float]:
    """Return the known figures of a step by name.

    With several parameter groups, their learning rates are named `lr/0`, `lr/1`, ...
    """
    rates = info.learning_rates or ()
    found: dict[str, float | None] = {"samples": info.samples, "loss": info.loss}
    found |= {"lr" if len(rates) == 1 else f"lr/{group}": rate for group, rate in enumerate(rates)}
    for name in ("gradient_norm", "step_s", "samples_per_s", "tokens_per_s", "mfu"):
        found[name] = getattr(info, name)
    return {name: value for name, value in found.items() if value is not None}


def evaluation_names(names: Iterable[str]) -> list[str]:
    """Return the names under which loggers write the figures of evaluations.

    Arguments:
        names: "loss", and the names of the metrics (`StepInfo.evaluates`).
    """
    return [f"eval_{name}" for name in names]


def figures_of_evaluation(info: EvaluationInfo) -> dict[str, float]:
    """Return the figures of an evaluation by name: `eval_loss`, and `eval_` before the name of each metric."""
    found = {LOSS: info.loss, **info.metrics}
    return dict(zip(evaluation_names(found), found.values(), strict=True))
