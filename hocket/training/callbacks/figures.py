"""Names and values under which loggers write the figures of a step."""

from hocket.training.callbacks.step_info import StepInfo


def figures_of(info: StepInfo) -> dict[str, float]:
    """Return the known figures of a step by name.

    With several parameter groups, their learning rates are named `lr/0`, `lr/1`, ...
    """
    rates = info.learning_rates or ()
    found: dict[str, float | None] = {"samples": info.samples, "loss": info.loss}
    found |= {"lr" if len(rates) == 1 else f"lr/{group}": rate for group, rate in enumerate(rates)}
    for name in ("gradient_norm", "step_s", "samples_per_s", "tokens_per_s"):
        found[name] = getattr(info, name)
    return {name: value for name, value in found.items() if value is not None}
