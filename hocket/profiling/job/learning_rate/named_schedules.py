"""Named learning-rate schedules: factors of the learning rates by training step.

Rules of this file:
- No torch is imported.
- Each schedule is a pure function of the step, so checkpoints contain no scheduler state.
- Names and values match `transformers.get_scheduler` (Hugging Face) bit for bit. `warmup_steps` and `steps` correspond
  to its `num_warmup_steps` and `num_training_steps`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import cos, isfinite, pi, sqrt
from typing import Any

from hocket.errors import InputError, nearest

PLACE = "Job.lr_schedule"
_SHAPES = ("linear", "cosine", "1-sqrt")
_COUNTS = ("steps", "warmup_steps", "decay_steps", "stable_steps", "timescale")
# Schedules that depend on the loss, not on the step.
_BY_LOSS = ("reduce_lr_on_plateau", "greedy")

Factor = Callable[..., float]
"""Function from the step (from 0), the default rate and named arguments to a factor."""


def _constant(step: int, lr: float) -> float:
    return 1.0


def _constant_with_warmup(step: int, lr: float, *, warmup_steps: int) -> float:
    return _rising(step, warmup_steps) if step < warmup_steps else 1.0


def _linear(step: int, lr: float, *, steps: int, warmup_steps: int = 0) -> float:
    if step < warmup_steps:
        return _rising(step, warmup_steps)
    return max(0.0, (steps - step) / max(1, steps - warmup_steps))


def _cosine(step: int, lr: float, *, steps: int, warmup_steps: int = 0, num_cycles: float = 0.5) -> float:
    if step < warmup_steps:
        return _rising(step, warmup_steps)
    return max(0.0, _wave(_progress(step, warmup_steps, steps), num_cycles))


def _cosine_with_restarts(step: int, lr: float, *, steps: int, warmup_steps: int = 0, num_cycles: float = 1) -> float:
    if step < warmup_steps:
        return _rising(step, warmup_steps)
    progress = _progress(step, warmup_steps, steps)
    return 0.0 if progress >= 1.0 else max(0.0, 0.5 * (1.0 + cos(pi * ((num_cycles * progress) % 1.0))))


def _polynomial(
    step: int, lr: float, *, steps: int, warmup_steps: int = 0, lr_end: float = 1e-7, power: float = 1.0
) -> float:
    if not lr > lr_end:
        raise InputError(PLACE, f"lr_end={lr_end}, but the optimizer has lr={lr}", "lr_end below lr")
    if step < warmup_steps:
        return _rising(step, warmup_steps)
    if step > steps or steps == warmup_steps:
        return lr_end / lr
    left = 1 - (step - warmup_steps) / (steps - warmup_steps)
    return ((lr - lr_end) * left**power + lr_end) / lr


def _inverse_sqrt(step: int, lr: float, *, warmup_steps: int, timescale: int | None = None) -> float:
    if step < warmup_steps:
        return _rising(step, warmup_steps)
    scale = timescale if timescale is not None else warmup_steps or 10_000
    return 1.0 / sqrt((step + (scale - warmup_steps)) / scale)


def _cosine_with_min_lr(
    step: int,
    lr: float,
    *,
    steps: int,
    warmup_steps: int = 0,
    num_cycles: float = 0.5,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
) -> float:
    least = _least(lr, min_lr, min_lr_rate)
    if step < warmup_steps:
        return _rising(step, warmup_steps)
    return max(0.0, _above(_wave(_progress(step, warmup_steps, steps), num_cycles), least))


def _cosine_warmup_with_min_lr(
    step: int,
    lr: float,
    *,
    steps: int,
    warmup_steps: int = 0,
    num_cycles: float = 0.5,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
    warmup_lr_rate: float | None = None,
) -> float:
    least = _least(lr, min_lr, min_lr_rate)
    if step < warmup_steps:
        if warmup_lr_rate is None:
            return (step + 1.0) / max(1.0, warmup_steps)
        return warmup_lr_rate + (1.0 - warmup_lr_rate) * step / max(1, warmup_steps - 1)
    progress = (step - warmup_steps + 1.0) / max(1.0, steps - warmup_steps)
    return max(0.0, _above(_wave(progress, num_cycles), least))


def _warmup_stable_decay(
    step: int,
    lr: float,
    *,
    decay_steps: int,
    warmup_steps: int = 0,
    steps: int | None = None,
    stable_steps: int | None = None,
    warmup_type: str = "linear",
    decay_type: str = "cosine",
    min_lr_ratio: float = 0.0,
    num_cycles: float = 0.5,
) -> float:
    if stable_steps is None:
        if steps is None:
            raise InputError(PLACE, "neither steps nor stable_steps", "exactly one of them for 'warmup_stable_decay'")
        stable_steps = steps - warmup_steps - decay_steps
    if step < warmup_steps:
        done = _rising(step, warmup_steps)
        risen = {"linear": done, "cosine": 0.5 * (1.0 - cos(pi * done)), "1-sqrt": 1.0 - sqrt(1.0 - done)}
        return max(0.0, _above(risen[warmup_type], min_lr_ratio))
    if step < warmup_steps + stable_steps:
        return 1.0
    if step < warmup_steps + stable_steps + decay_steps:
        done = (step - warmup_steps - stable_steps) / max(1, decay_steps)
        left = {"linear": 1.0 - done, "cosine": _wave(done, num_cycles), "1-sqrt": 1.0 - sqrt(done)}
        return max(0.0, _above(left[decay_type], min_lr_ratio))
    return min_lr_ratio


def _rising(step: int, warmup_steps: int) -> float:
    return step / max(1, warmup_steps)


def _progress(step: int, warmup_steps: int, steps: int) -> float:
    return (step - warmup_steps) / max(1, steps - warmup_steps)


def _wave(progress: float, num_cycles: float) -> float:
    return 0.5 * (1.0 + cos(pi * num_cycles * 2.0 * progress))


def _above(factor: float, least: float) -> float:
    return factor * (1 - least) + least


def _least(lr: float, min_lr: float | None, min_lr_rate: float | None) -> float:
    if (min_lr is None) == (min_lr_rate is None):
        found = "neither min_lr nor min_lr_rate" if min_lr is None else "both min_lr and min_lr_rate"
        raise InputError(PLACE, found, "exactly one of them")
    if min_lr is None:
        return min_lr_rate or 0.0
    if not lr > 0:
        raise InputError(PLACE, f"min_lr={min_lr}, but the optimizer has lr={lr}", "an optimizer with lr > 0")
    return min_lr / lr


SCHEDULES: Mapping[str, Factor] = {
    "constant": _constant,
    "constant_with_warmup": _constant_with_warmup,
    "linear": _linear,
    "cosine": _cosine,
    "cosine_with_restarts": _cosine_with_restarts,
    "polynomial": _polynomial,
    "inverse_sqrt": _inverse_sqrt,
    "cosine_with_min_lr": _cosine_with_min_lr,
    "cosine_warmup_with_min_lr": _cosine_warmup_with_min_lr,
    "warmup_stable_decay": _warmup_stable_decay,
}


@dataclass(frozen=True)
class NamedSchedule:
    """Named schedule with its arguments.

    Attributes:
        name: one of SCHEDULES.
        arguments: keyword arguments of the schedule.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, given: str | Mapping[str, Any]) -> "NamedSchedule":
        """Read a named schedule from a job's `lr_schedule`.

        Arguments:
            given: a name, or a dictionary with `name` and arguments, such as {"name": "cosine", "steps": 1000}.

        Raises:
            InputError: the schedule is unknown; or an argument is unknown, missing, or out of range.
        """
        arguments = {} if isinstance(given, str) else dict(given)
        name = given if isinstance(given, str) else arguments.pop("name", None)
        if name in _BY_LOSS:
            found = f"{name!r}, whose rate depends on the loss"
            raise InputError(
                PLACE, found, "a schedule that depends only on the step", f"One of {', '.join(SCHEDULES)}."
            )
        if name not in SCHEDULES:
            hint = nearest(str(name), SCHEDULES) if name is not None else 'Write {"name": "cosine", "steps": 1000}.'
            found = "a dictionary without `name`" if name is None else repr(name)
            raise InputError(PLACE, found, f"one of {', '.join(SCHEDULES)}", hint)
        known = [p for p in inspect.signature(SCHEDULES[name]).parameters.values() if p.kind is p.KEYWORD_ONLY]
        takes = [p.name for p in known]
        for key, value in arguments.items():
            if key not in takes:
                told = f"the arguments of {name!r}: {', '.join(takes) or 'none'}"
                raise InputError(
                    f"{PLACE}[{key!r}]", "unknown argument", told, nearest(key.removeprefix("num_"), takes)
                )
            _check_argument(key, value)
        missing = [p.name for p in known if p.default is p.empty and p.name not in arguments]
        if missing:
            example = ", ".join(f'"{key}": {1000 if key == "steps" else 100}' for key in missing)
            hint = f'Write lr_schedule={{"name": "{name}", {example}}}.'
            raise InputError(PLACE, f"{name!r} without {', '.join(missing)}", "every argument that it needs", hint)
        steps, warmup_steps = arguments.get("steps"), arguments.get("warmup_steps", 0)
        if steps is not None and warmup_steps > steps:
            raise InputError(f"{PLACE}['warmup_steps']", str(warmup_steps), f"at most steps = {steps}")
        found_schedule = cls(str(name), arguments)
        found_schedule.factor(0, float("inf"))  # refuses arguments that exclude each other
        return found_schedule

    def factor(self, step: int, lr: float) -> float:
        """Compute the factor of the learning rates at a step.

        Arguments:
            step: training step, from 0.
            lr: default learning rate of the optimizer.
        """
        return SCHEDULES[self.name](step, lr, **self.arguments)


def check_lr_schedule(given: Any) -> None:
    """Refuse a value of `Job.lr_schedule` that is none of the allowed kinds, or has invalid arguments.

    Raises:
        InputError: the value is neither a function, nor several functions, nor a named schedule; or the arguments of a
            named schedule are invalid.
    """
    if isinstance(given, (str, Mapping)):
        NamedSchedule.read(given)
    elif isinstance(given, Sequence):
        if not given or not all(callable(each) for each in given):
            found = "an empty list" if not given else f"a list with {next(x for x in given if not callable(x))!r}"
            raise InputError(PLACE, found, "a function from a step to a factor for each parameter group")
    elif not callable(given):
        hint = 'Write lr_schedule=lambda step: min(1, step / 100), or {"name": "cosine", "steps": 1000, "warmup_steps": 100}.'
        raise InputError(PLACE, repr(given), "a function from a step to a factor, a name, or a dictionary", hint)


def _check_argument(key: str, value: Any) -> None:
    place, number = f"{PLACE}[{key!r}]", isinstance(value, (int, float)) and not isinstance(value, bool)
    if key in ("warmup_type", "decay_type"):
        if value not in _SHAPES:
            raise InputError(place, repr(value), f"one of {', '.join(_SHAPES)}")
    elif key in _COUNTS:
        least = 0 if key in ("warmup_steps", "stable_steps") else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(place, repr(value), f"a whole number >= {least}")
    elif not number or not isfinite(value) or value < 0:
        raise InputError(place, repr(value), "a number >= 0")
