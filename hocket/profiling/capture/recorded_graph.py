"""Recorded forward pass: values, operations and module calls.

Rules of this file: every value is assigned once. A tensor that is modified in place becomes a new value. This file
knows neither how to record nor layers.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

LOSS = "<loss>"


@dataclasses.dataclass(frozen=True)
class Ref:
    """Placeholder for a tensor in recorded arguments: index in `RecordedGraph.values`."""

    value: int


@dataclasses.dataclass
class RecordedValue:
    """One version of a tensor in a recorded forward pass; a change in place makes a new version.

    Attributes:
        kind: "batch", "parameter", "buffer", "node" (made by an operation) or "constant" (any other tensor).
        name: key of the batch's tensor, or global name of the parameter or buffer; "" for other kinds.
        node: index of the operation that computed it; -1 for other kinds.
        fixed: True if it depends neither on the batch nor on parameters nor on random numbers.
        storage: identity of the storage that it shares with its views.
        tensor: the tensor itself for a constant; None for other kinds.
    """

    kind: str
    name: str
    node: int
    fixed: bool
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    storage: int
    tensor: Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Context:
    """Gradient mode and autocast mode around an operation.

    Attributes:
        gradients: True if gradients are recorded.
        autocast: True if autocast is on.
        device: device type of autocast.
        dtype: type that autocast computes in.
    """

    gradients: bool
    autocast: bool
    device: str
    dtype: torch.dtype


@dataclasses.dataclass
class RecordedOperation:
    """One operation of a recorded forward pass: a call of a torch function, or of a module that stays whole.

    Attributes:
        target: the function, or the path of a module.
        args, kwargs: arguments, with a `Ref` in place of each tensor.
        outputs: for each result, (path in the returned object, index of the value).
        aliases: (index of the value before, index after) for each tensor that changed in place.
        call: index of the innermost module call around it.
        reads: indices of the values that it reads.
        mutates: storages that it writes to.
        context: the modes that it ran under; None for gradients on and autocast off.
        moved_bytes: bytes of its inputs and results.
    """

    target: Callable[..., Any] | str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[tuple[tuple[Any, ...], int]]
    aliases: list[tuple[int, int]]
    call: int
    reads: tuple[int, ...]
    mutates: frozenset[int] = frozenset()
    context: Context | None = None
    random: bool = False
    flops: float = 0.0
    moved_bytes: float = 0.0

    @property
    def label(self) -> str:
        """The module's path or the function's name; equal for equal operations."""
        return self.target if isinstance(self.target, str) else function_name(self.target)

    @property
    def writes(self) -> list[int]:
        """Indices of all values that the operation creates."""
        return [value for _, value in self.outputs] + [after for _, after in self.aliases]


@dataclasses.dataclass
class Call:
    """One call of a module.

    The operations `start` to `end` - 1 belong to it and to the calls inside it.

    Attributes:
        path: path of the module; LOSS for a loss function.
        kind: name of the module's class, or of the loss function.
        parent: index of the call around it; -1 for the outermost call.
        container: True for an `nn.Sequential`.
        as_one: True if its operations stay in one layer, though each is recorded.
    """

    path: str
    kind: str
    parent: int
    start: int
    end: int = 0
    container: bool = False
    as_one: bool = False


@dataclasses.dataclass
class RecordedGraph:
    """Recording of a model and its loss.

    Attributes:
        loss: index of the value that the loss function returned.
        changed_buffers: names of the buffers that the forward changed.
    """

    values: list[RecordedValue]
    nodes: list[RecordedOperation]
    calls: list[Call]
    loss: int
    changed_buffers: frozenset[str]
    notes: tuple[str, ...]


def function_name(target: Callable[..., Any]) -> str:
    """Return a function's plain name, such as "shape.__get__" for an attribute."""
    name = getattr(target, "__name__", type(target).__name__)
    if name in ("__get__", "__set__"):
        owner = getattr(target, "__self__", None)
        return f"{getattr(owner, '__name__', 'attribute')}.{name}"
    return str(name)


def flatten(thing: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Yield the tensors in nested containers, each with its path.

    Containers are tuples, lists, dictionaries and dataclasses.
    """
    if isinstance(thing, Tensor):
        yield path, thing
    elif isinstance(thing, dict):
        for key, item in thing.items():
            yield from flatten(item, (*path, ("item", key)))
    elif isinstance(thing, (tuple, list)):
        for k, item in enumerate(thing):
            yield from flatten(item, (*path, ("item", k)))
    elif dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        for field in dataclasses.fields(thing):
            yield from flatten(getattr(thing, field.name, None), (*path, ("attribute", field.name)))
