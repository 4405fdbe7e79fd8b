"""Learning rates of all parameter groups at every training step.

Rules of this file:
- The step number alone determines a rate. All workers, plans and resumed runs therefore agree on it.
- Checkpoints contain no scheduler state.
- A torch scheduler has a state. It is replayed from step 0 on a separate optimizer.
"""

import threading
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hocket.errors import InputError
from hocket.profiling.job.job import Job
from hocket.profiling.job.learning_rate.named_schedules import PLACE, NamedSchedule
from hocket.profiling.job.optimizer import (
    called,
    first_argument,
    has_scheduler,
    has_step_hooks,
    optimizer_name,
    optimizer_of,
    whole_optimizer,
)
from hocket.profiling.job.parameter_groups import check_groups

OF_OPTIMIZER = "optimizer"
"""Name of the first argument of a function from an optimizer to a torch scheduler."""
# Entries of a parameter group that torch's own schedulers change.
_CHANGED = ("lr", "momentum", "betas")
# Entries of a parameter group that are no settings.
_PARAMETERS = ("params", "param_names")
# Number of recent steps cached for a replayed torch scheduler, a bound on the distance between stages.
_KEPT = 256

Values = tuple[dict[str, Any], ...]
"""Values to write into each parameter group."""


class LearningRates:
    """Learning rates by training step; see the module docstring."""

    def __init__(self, job: Job, optimizer: Optimizer) -> None:
        """Read the base rates from a new optimizer.

        Raises:
            InputError: the schedule does not fit the optimizer.
        """
        given = job.lr_schedule
        self._job, self._factors, self._played = job, [], None
        groups = optimizer.param_groups
        self._base = [_copied(group.get("lr")) for group in groups]
        if given is None:
            return
        if has_scheduler(optimizer):
            found = "a schedule in addition to a torch scheduler that Job.optimizer attaches"
            raise InputError(PLACE, found, "only one of them", "Leave the scheduler out of Job.optimizer.")
        if any(base is None for base in self._base):
            raise InputError(
                PLACE, f"{optimizer_name(optimizer)} with a parameter group without `lr`", "`lr` in each group"
            )
        if isinstance(given, (str, Mapping)):
            named, default = NamedSchedule.read(given), optimizer.defaults.get("lr")
            lr = float(self._base[0] if default is None else default)
            self._factors = [lambda step: named.factor(step, lr)] * len(groups)
        elif not callable(given):
            if len(given) != len(groups):
                found, expected = (
                    f"{len(given)} functions",
                    f"{len(groups)}, one for each parameter group of the optimizer",
                )
                raise InputError(
                    PLACE, found, expected, "Give a single function, without a list, to schedule all groups."
                )
            self._factors = list(given)
        elif first_argument(given) == OF_OPTIMIZER:
            self._played = _Played(job)
        else:
            self._factors = [given] * len(groups)

    def at(self, step: int) -> Values:
        """Return the values of each group at a training step (from 0).

        The result is empty without a schedule.

        Raises:
            InputError: the schedule does not return a number >= 0 at this step.
        """
        if self._played is not None:
            return self._played.at(step)
        factors = zip(self._factors, self._base, strict=False)
        return tuple({"lr": base * _factor(function, step)} for function, base in factors)

    @property
    def keys(self) -> frozenset[str]:
        """Keys of parameter groups that the schedule sets; empty without a schedule."""
        return frozenset(_CHANGED if self._played is not None else ("lr",) if self._factors else ())

    def lr(self, step: int) -> list[float | None]:
        """Return the learning rate of each parameter group at a step; None for a group without `lr`."""
        found = [values["lr"] for values in self.at(step)] or self._base
        return [None if rate is None else float(rate) for rate in found]

    def set(self, optimizer: Optimizer, step: int) -> None:
        """Write the values of a training step into an optimizer's parameter groups."""
        for group, values in zip(optimizer.param_groups, self.at(step), strict=False):
            for key, value in values.items():
                if isinstance(group[key], Tensor):
                    group[key].fill_(value)
                else:
                    group[key] = value


class _Played:
    """Lazy replay of a torch scheduler on placeholder parameters."""

    def __init__(self, job: Job) -> None:
        self._job, self._lock = job, threading.Lock()
        self._begin()

    def at(self, step: int) -> Values:
        """Return the values of each group at a training step."""
        with self._lock:
            if step < self._reached and step not in self._seen:
                self._begin()
            while self._reached < step:
                called(PLACE, self._scheduler.step)
                self._reached += 1
                self._note()
            return self._seen[step]

    def _begin(self) -> None:
        self._optimizer, self._reached = whole_optimizer(self._job), 0
        self._new = [
            {key: _copied(value) for key, value in group.items() if key not in _PARAMETERS}
            for group in self._optimizer.param_groups
        ]
        self._changed = [{key for key in _CHANGED if key in group} for group in self._new]
        made = called(PLACE, self._job.lr_schedule, self._optimizer)  # type: ignore[arg-type]
        if isinstance(made, ReduceLROnPlateau) or not isinstance(made, LRScheduler):
            found = f"a {type(made).__name__}" + (
                ", which depends on the loss" if isinstance(made, ReduceLROnPlateau) else ""
            )
            expected = "a torch scheduler that depends only on the step, from a function of `optimizer`"
            hint = "For a function of the step, give its argument another name: lambda step: min(1, step / 100)."
            if isinstance(made, ReduceLROnPlateau):
                hint = "The loss is known on one worker only, and later than the step: let the rate depend on the step number."
            raise InputError(PLACE, found, expected, hint)
        if made.optimizer is not self._optimizer:
            raise InputError(
                PLACE, "a scheduler of another optimizer", "a scheduler of the optimizer that is passed to the function"
            )
        self._scheduler, self._seen = made, dict[int, Values]()
        self._optimizer._opt_called = True  # type: ignore[attr-defined]  # otherwise a scheduler warns if its step comes first
        self._note()

    def _note(self) -> None:
        """Note the entries of each group that the scheduler has changed so far.

        The others are left alone: optimizers keep counters and estimates of their own in their groups.
        """
        found = []
        for group, new, changed in zip(self._optimizer.param_groups, self._new, self._changed, strict=False):
            # An entry stays among them when it returns to its first value, which then has to be written, too.
            changed.update(key for key, value in new.items() if not _same(group.get(key), value))
            found.append({key: _copied(group[key]) for key in sorted(changed) if key in group})
        self._seen[self._reached] = tuple(found)
        self._seen.pop(self._reached - _KEPT, None)


class Scheduled:
    """Optimizer that applies the learning rates of each training step."""

    def __init__(self, optimizer: Optimizer, rates: LearningRates | None = None) -> None:
        self.optimizer, self._rates = optimizer, rates

    @property
    def keys(self) -> frozenset[str]:
        """Keys of parameter groups that the schedule sets; empty without a schedule."""
        return frozenset() if self._rates is None else self._rates.keys

    def step(self, training_step: int = 0) -> None:
        """Run the optimizer step of training step `training_step` (from 0)."""
        if self._rates is not None:
            self._rates.set(self.optimizer, training_step)
        self.optimizer.step()


def scheduled(job: Job, own: Mapping[str, nn.Parameter]) -> Scheduled:
    """Return the optimizer of a worker's parameters, with its learning rates.

    Arguments:
        own: local parameters by name; shards of any shape for sharded parameters.
    """
    optimizer = optimizer_of(job, own)
    return Scheduled(optimizer, LearningRates(job, optimizer))


def rates_of(job: Job) -> LearningRates:
    """Return the learning rates of the optimizer of the whole model.

    Raises:
        InputError: the optimizer or the schedule is invalid.
    """
    return LearningRates(job, whole_optimizer(job))


def check_optimizer_and_rates(job: Job) -> None:
    """Validate the optimizer and the schedule of a job before any computation.

    Raises:
        InputError: the optimizer or the schedule is invalid.
    """
    if any(p.requires_grad for p in job.as_written.model.parameters()):
        rates_of(job).at(0)
        check_groups(job)


def shown_rates(job: Job) -> Callable[[int], list[float | None] | None]:
    """Return a function from a training step to the learning rate of each group.

    The function returns None if the optimizer has step hooks or its own scheduler, because they may change the rates.
    """
    optimizer = whole_optimizer(job)
    if has_step_hooks(optimizer) or has_scheduler(optimizer):
        return lambda step: None
    return LearningRates(job, optimizer).lr


def remarks(job: Job, resumed: bool) -> list[str]:
    """Return notes about hooks and schedulers that the job attaches to its optimizer.

    Arguments:
        resumed: True if the run continues from a checkpoint.
    """
    optimizer, found = whole_optimizer(job), []
    if has_step_hooks(optimizer):
        text = "Job.optimizer registers step hooks: each stage's own optimizer has them, and calls them at each of its updates"
        lost = "; their state is not in the checkpoint, and begins anew"
        found.append(text + (lost if resumed else ""))
    elif has_scheduler(optimizer):
        found.append(
            "Job.optimizer attaches a torch scheduler. Its step() is not called, so the rate does not change. "
            "Give the schedule as Job.lr_schedule"
        )
    return found


def _factor(function: Any, step: int) -> float:
    try:
        value = called(PLACE, function, step)
    except InputError as error:
        hint = "Name the first argument of a function that makes a torch scheduler `optimizer`; other functions get the step."
        raise InputError(error.place, error.found, error.expected, error.next_step or hint) from error
    try:
        factor = float(value)
    except (TypeError, ValueError):
        raise InputError(PLACE, f"a {type(value).__name__} at step {step}", "a number >= 0") from None
    if not isfinite(factor) or factor < 0:
        hint = "Keep it at 0 or more, as in lambda step: max(0.0, 1 - step / 1000)." if factor < 0 else ""
        raise InputError(PLACE, f"the factor {factor!r} at step {step}", "a number >= 0", hint)
    return factor


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return list(value)
    return value.clone() if isinstance(value, Tensor) else value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return one is other or bool(one == other)
