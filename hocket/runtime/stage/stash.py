"""Stash: tensors and graph that a forward saves for its backward.

It can also track the memory of the tensors that autograd saves. The references are weak, so a backward still frees
this memory tensor by tensor. Memory of other values (weights, the stage's inputs) is not tracked.
"""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from hocket.profiling.capture.storage_tracker import storage_key


class Stash:
    """Saved state of one forward.

    Attributes:
        leaves: the stage's inputs that need a gradient, by name.
        edges: gradient edges of the outputs, by name; they do not keep the outputs' data.
        loss: gradient edge of the loss; None if the stage does not compute it.
        kept: weak references to the storages that autograd saves, by identity; empty if they are not tracked.
    """

    __slots__ = ("edges", "kept", "leaves", "loss")

    def __init__(self) -> None:
        self.leaves: dict[str, Tensor] = {}
        self.edges: dict[str, GradientEdge] = {}
        self.loss: GradientEdge | None = None
        self.kept: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    @contextmanager
    def watching(self, others: Iterable[Tensor]) -> Iterator[None]:
        """Track the tensors that autograd saves inside this context.

        Arguments:
            others: tensors with memory that is not tracked.
        """
        not_its = {storage_key(tensor) for tensor in others}

        def keep(tensor: Tensor) -> Tensor:
            key = storage_key(tensor)
            if key not in not_its and key not in self.kept:
                self.kept[key] = weakref.ref(tensor.untyped_storage())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, _same):
            yield

    def storages(self) -> Iterator[torch.UntypedStorage]:
        """Yield the tracked storages that autograd still keeps."""
        for reference in self.kept.values():
            storage = reference()
            if storage is not None:
                yield storage


def _same(tensor: Tensor) -> Tensor:
    return tensor
