"""Vocabulary-parallel logits: each rank has the logits of some vocabulary entries.

Changes of shape, dtype or device and arithmetic with numbers, between the output layer and the cross-entropy, run on
each rank's part. The cross-entropy is computed from parts (vocab_parallel.py). Any other operation gets the gathered
logits.
Rules of this file: a part is a tensor with a changed class (`as_part`); its numbers and its graph stay the same.
Operations run on plain tensors, so that a `TorchFunctionMode` sees operations on parts.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hocket.profiling.capture.recorded_graph import flatten, function_name
from hocket.profiling.tensor_parallel.vocab_parallel import REDUCTIONS, VocabularyRange, cross_entropy, gathered


@dataclass
class LogitsLog:
    """Operations on the logits of one run.

    Attributes:
        steps: function, arguments, keyword arguments and result of each operation on parts, cross-entropies included.
        refused: name of the first operation that needed the whole logits; "" for none.
        ends: number of cross-entropies.
    """

    steps: list[tuple[Callable[..., Any], Any, dict[str, Any], Tensor]] = field(default_factory=list)
    refused: str = ""
    ends: int = 0


class LogitsPart(Tensor):
    """One rank's part of the logits; it reports the shape of the whole logits."""

    _words: VocabularyRange
    _dim: int
    _journal: LogitsLog | None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = {id(x): x for _, x in flatten((args, kwargs)) if isinstance(x, LogitsPart)}
        with _plain(*given.values()):
            return _done(func, tuple(args), kwargs, list(given.values()))


def as_part(x: Tensor, words: VocabularyRange, dim: int, journal: LogitsLog | None = None) -> Tensor:
    """Mark a tensor, in place, as this rank's part of the logits.

    Arguments:
        words: the rank's vocabulary range.
        dim: index of the vocabulary dimension.
        journal: log of the operations on the part; None for no log.
    """
    x.__class__ = LogitsPart
    x._words, x._dim, x._journal = words, dim, journal  # type: ignore[attr-defined]
    return x


@contextmanager
def _plain(*parts: Any) -> Iterator[None]:
    for x in parts:
        x.__class__ = Tensor
    try:
        yield
    finally:
        for x in parts:
            x.__class__ = LogitsPart


def _done(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[Any]) -> Any:
    x = given[0]
    tensors = [t for _, t in flatten((args, kwargs))]
    if len(given) == 1 and args and args[0] is x:
        if (question := _question(func)) is not None:
            return func(*args, **kwargs) if question not in _SIZES else _size(x, question, *args[1:], **kwargs)
        name = function_name(func)
        if len(tensors) == 1 and name in _ALIKE:
            return _noted(x, func, args, kwargs, func(*args, **kwargs), x._dim)
        if len(tensors) == 1 and name in _SHAPED and (found := _shaped(x, func, name, args, kwargs)) is not None:
            return _noted(x, func, args, kwargs, *found)
    if func is functional.cross_entropy and (asked := _asked(x, tensors, args, kwargs)) is not None:
        return _noted(x, func, args, kwargs, cross_entropy(x, asked.pop("target"), x._words, **asked), None)
    if x._journal is not None:
        x._journal.refused = x._journal.refused or function_name(func)
    whole = {id(one): gathered(one, one._words, one._dim) for one in given}
    return func(*_with(args, whole), **_with(kwargs, whole))


def _noted(x: Any, func: Any, args: Any, kwargs: Any, result: Any, dim: int | None) -> Any:
    if not isinstance(result, Tensor):
        return result
    if dim is not None:
        as_part(result, x._words, dim, x._journal)
    if x._journal is not None:
        x._journal.steps.append((func, args, kwargs, result))
        x._journal.ends += dim is None
    return result


def _with(thing: Any, whole: dict[int, Tensor]) -> Any:
    if isinstance(thing, Tensor):
        return whole.get(id(thing), thing)
    if isinstance(thing, tuple) and hasattr(thing, "_fields"):
        return type(thing)(*(_with(item, whole) for item in thing))
    if isinstance(thing, (tuple, list)):
        return type(thing)(_with(item, whole) for item in thing)
    return {key: _with(item, whole) for key, item in thing.items()} if isinstance(thing, dict) else thing


# -- queries about parts (shape, dtype, strides, ...)

_SIZES = frozenset(["shape", "size", "numel", "nelement", "__len__"])
_QUESTIONS = _SIZES | {
    "dim", "ndimension", "is_floating_point", "is_complex", "element_size", "get_device", "is_contiguous", "stride",
    "__hash__", "requires_grad_", "data_ptr", "untyped_storage",
}  # fmt: skip
_TENSORS = frozenset(["T", "mT", "H", "mH", "data", "real", "imag"])  # attributes that are tensors


def _question(func: Any) -> str | None:
    """Name of a query about a tensor, such as `shape`; None for other functions."""
    name = function_name(func)
    if name.endswith(".__get__"):
        name = name.removesuffix(".__get__")
        return None if name in _TENSORS else name
    return name if name in _QUESTIONS else None


def _shape(x: Any) -> torch.Size:
    with torch._C.DisableTorchFunction():
        return torch.Size((*x.shape[: x._dim], x._words.size, *x.shape[x._dim + 1 :]))


def _size(x: Any, question: str, dim: int | None = None) -> Any:
    shape = _shape(x)
    match question:
        case "shape" | "size":
            return shape if dim is None else shape[dim]
        case "__len__":
            return shape[0]
    return prod(shape)


# -- operations that work on parts as on the whole

_ALIKE = frozenset(
    [
        *("float", "double", "half", "bfloat16", "to", "type", "cpu", "cuda", "contiguous", "clone", "detach"),
        *("neg", "tanh", "mul", "multiply", "div", "divide", "true_divide", "add", "sub"),
    ]
)
_VIEWS = frozenset(["view", "reshape", "flatten", "unflatten"])
_TURNS = frozenset(["transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "unsqueeze"])
_SHAPED = _VIEWS | _TURNS | {"__getitem__"}


def _shaped(x: Any, func: Any, name: str, args: Any, kwargs: Any) -> tuple[Tensor, int] | None:
    """Apply a change of shape to a part: the result and its vocabulary dimension.

    None if the whole vocabulary is not one separate dimension of the result.

    Arguments:
        func, name: the operation, and its name in `_SHAPED`.
    """
    if name == "__getitem__":
        dim = _behind(x, args[1])
        return None if dim is None else (func(*args), dim)
    shape = _shape(x)
    with torch._C.DisableTorchFunction():
        # Permuted dimensions are recognized by their sizes, which all differ.
        sizes = range(2, 2 + len(shape)) if name in _TURNS else shape
        asked = func(torch.empty(tuple(sizes), device="meta"), *args[1:], **kwargs)
    if name in _TURNS:
        return func(*args, **kwargs), list(asked.shape).index(2 + x._dim)
    if asked.dtype != torch.get_default_dtype():  # a view as another dtype
        return None
    before = prod(shape[: x._dim])
    for dim, size in enumerate(asked.shape):
        if size == x._words.size and prod(asked.shape[:dim]) == before:
            way = Tensor.view if name == "view" else Tensor.reshape
            return way(x, (*asked.shape[:dim], len(x._words.own), *asked.shape[dim + 1 :])), dim
    return None


def _behind(x: Any, index: Any) -> int | None:
    """Vocabulary dimension of `x[index]`.

    None if the index does not take the whole vocabulary, or contains anything but integers, slices, None and `...`.
    """
    items = list(index) if isinstance(index, tuple) else [index]
    taken = sum(type(item) in (int, slice) for item in items)
    if any(type(item) not in (int, slice, type(None), type(...)) for item in items):
        return None
    if ... not in items:
        items.append(...)
    if items.count(...) > 1:
        return None
    at = items.index(...)
    dims = len(_shape(x))
    items[at : at + 1] = [slice(None)] * (dims - taken)
    read = made = 0
    for item in items:
        if item is None:
            made += 1
            continue
        if read == x._dim:
            return made if item == slice(None) else None
        read, made = read + 1, made + (type(item) is slice)
    return None


def _asked(x: Any, tensors: list[Tensor], args: Any, kwargs: Any) -> dict[str, Any] | None:
    """Arguments for `vocab_parallel.cross_entropy`; None if it cannot do this call.

    Arguments:
        tensors: all tensors among `args` and `kwargs`, the arguments of `functional.cross_entropy`.
    """
    call = inspect.signature(functional.cross_entropy).bind(*args, **kwargs)
    call.apply_defaults()
    asked = dict(call.arguments)
    usual = all(asked.pop(name) is None for name in ("weight", "size_average", "reduce"))
    target, dims = asked["target"], len(_shape(x))
    with torch._C.DisableTorchFunction():
        by_number = isinstance(target, Tensor) and not target.is_floating_point() and target.dim() == dims - 1
    of_words = asked.pop("input") is x and x._dim == min(1, dims - 1) and len(tensors) == 2
    return asked if usual and of_words and by_number and asked["reduction"] in REDUCTIONS else None
