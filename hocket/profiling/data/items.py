"""Items of a sample: named values, and which of them the model and the loss get.

Rules of this file: no torch is imported; signatures alone decide. Items of a tuple are named item0, item1, ...; items
of a dictionary keep their keys.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

from hocket.errors import InputError

Items = dict[str, Any]


@dataclass(frozen=True)
class Receivers:
    """Model and loss of a job, which get the items of the samples.

    Attributes:
        model: the model.
        loss: the loss; None if the model computes it.
        inputs: number of leading tuple items that the model gets.
    """

    model: Any
    loss: Callable[..., Any] | None
    inputs: int

    def split(self, batch: Items) -> tuple[tuple[Any, ...], Items, tuple[Any, ...], Items]:
        """Split a batch into arguments of the model and arguments of the loss.

        Returns:
            (args of the model, kwargs of the model, args of the loss, kwargs of the loss).

        Raises:
            InputError: a tuple has fewer items than the model gets.
        """
        if "item0" in batch:
            values = tuple(batch.values())
            if len(values) < self.inputs:
                raise InputError("Job.inputs", str(self.inputs), f"at most {len(values)}, the items of a sample")
            return values[: self.inputs], {}, values[self.inputs :], {}
        to_model = {key: value for key, value in batch.items() if self.accepts(key)}
        to_loss = {key: value for key, value in batch.items() if key not in to_model}
        return (), to_model, (), to_loss

    def accepts(self, key: str) -> bool:
        """True if the model gets the item of a dictionary with this key."""
        known, takes_all = self._of_model
        return key in known or (takes_all and self.loss is None)

    def gets(self, name: str, of_tuple: bool) -> bool:
        """True if the model or the loss gets an item.

        Arguments:
            name: name of the item.
            of_tuple: True for an item of a tuple, False for an item of a dictionary.
        """
        known, most = self._of_loss
        if of_tuple:
            return int(name.removeprefix("item")) < self.inputs + most
        return self.accepts(name) or (self.loss is not None and (known is None or name in known))

    @cached_property
    def _of_model(self) -> tuple[frozenset[str], bool]:
        """Names of the arguments of the forward, and True if it takes any name."""
        parameters = inspect.signature(self.model.forward).parameters.values()
        known = frozenset(p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL))
        return known, any(p.kind is p.VAR_KEYWORD for p in parameters)

    @cached_property
    def _of_loss(self) -> tuple[frozenset[str] | None, float]:
        """Names of the targets that the loss takes (None for any name), and the number of targets by position."""
        if self.loss is None:
            return frozenset(), 0
        try:
            called = getattr(self.loss, "forward", self.loss)  # of a module
            targets = list(inspect.signature(called).parameters.values())
        except (TypeError, ValueError):  # a built-in function without a signature
            return None, inf
        if targets and targets[0].kind is not inspect.Parameter.VAR_POSITIONAL:  # the output of the model
            targets = targets[1:]
        kinds = [p.kind for p in targets]
        names = frozenset(p.name for p in targets if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        places = sum(
            kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds
        )
        return (
            None if inspect.Parameter.VAR_KEYWORD in kinds else names,
            inf if inspect.Parameter.VAR_POSITIONAL in kinds else places,
        )


def items_in(value: Any, place: str, advice: str = "") -> tuple[Items, bool]:
    """Name the items of a sample or of a batch, and say whether it is a tuple.

    Arguments:
        place: the sample or the function, for the error.
        advice: next step of the error.

    Raises:
        InputError: the value is no tensor, no tuple and no dictionary, or is empty.
    """
    if hasattr(value, "is_floating_point") and hasattr(value, "shape"):
        value = (value,)
    of_tuple = isinstance(value, tuple | list)
    if isinstance(value, Mapping):
        items = dict(value)
    elif of_tuple:
        items = {f"item{k}": item for k, item in enumerate(value)}
    else:
        expected = "a tensor, a tuple of tensors, or a dictionary of tensors"
        raise InputError(place, f"a value of type {type(value).__name__}", expected, advice)
    if not items:
        raise InputError(place, "nothing", "at least one tensor")
    return items, of_tuple
