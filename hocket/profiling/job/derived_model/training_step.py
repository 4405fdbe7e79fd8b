"""Training step: a user's function that computes the loss, in place of the model's forward.

The step is wrapped in a module with the parameters, buffers and submodules of the model, under the same names. Capture,
checks and engines run this module like any other model.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from hocket.errors import InputError

_STEP = "a function step(model, ...) that returns the loss, with one more argument for each item of a sample"
_SHARED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


class StepModule(nn.Module):
    """Module with a training step as its forward.

    Submodules can be replaced here or in the user's model: both have the same dictionaries of them.

    Attributes:
        whole: the user's model, which the step gets.
        step: function that is called as `step(whole, ...)`.
    """

    whole: nn.Module
    step: Callable[..., Any]

    def __init__(self, model: nn.Module, step: Callable[..., Any]) -> None:
        super().__init__()
        # No submodule: the names of all tensors stay those of the user's model.
        object.__setattr__(self, "whole", model)
        object.__setattr__(self, "step", step)
        for name in _SHARED:
            self.__dict__[name] = model.__dict__[name]

    @property
    def training(self) -> bool:  # type: ignore[override]
        """True in training mode; the mode of the user's model."""
        return bool(self.whole.training)

    @training.setter
    def training(self, mode: bool) -> None:
        if "whole" in self.__dict__:  # nn.Module sets the mode of a new module
            self.whole.training = mode

    @property
    def forward(self) -> Callable[..., Any]:  # type: ignore[override]
        """The step, with the model as its first argument."""
        return partial(self.step, self.whole)


def with_step(model: nn.Module, step: Callable[..., Any]) -> nn.Module:
    """Return a module that runs a training step; a module of `with_step` is returned unchanged.

    Raises:
        InputError: the step is no function.
    """
    if not callable(step):
        raise InputError("Job.step", type(step).__name__, _STEP)
    return model if isinstance(model, StepModule) else StepModule(model, step)


def user_module(module: nn.Module) -> nn.Module:
    """Return the user's model; without a training step, this is the given module."""
    return module.whole if isinstance(module, StepModule) else module


def items_of(step: Callable[..., Any]) -> int:
    """Return the number of items of a sample that a step takes by position, at least 1.

    Raises:
        InputError: the step takes no model, or any number of items.
    """
    parameters = list(inspect.signature(step).parameters.values())
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if not places or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise InputError("Job.step", f"{_name(step)}{inspect.signature(step)}", _STEP)
    return max(1, len(places) - 1)


def _name(step: Callable[..., Any]) -> str:
    return str(getattr(step, "__qualname__", type(step).__name__))
