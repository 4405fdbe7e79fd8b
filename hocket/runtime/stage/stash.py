"""Stash: the tensors that a forward saves for its backward.

It also tracks which other memory autograd keeps.

Rules of this file: the memory that autograd keeps is known by weak references, so that a backward frees it piece by piece as it
does without them. What belongs to other values (weights, the stage's inputs) is theirs.
"""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from hocket.profiling.capture.storage_tracker import storage_key


class Stash:
    """Input leaves, and where gradients enter the graph (not the outputs' data).

    Attributes:
        kept: storages that autograd keeps, as weak references, by identity; empty where nobody watched.
    """

    __slots__ = ("edges", "kept", "leaves", "loss")

    def __init__(self) -> None:
        self.leaves: dict[str, Tensor] = {}
        self.edges: dict[str, GradientEdge] = {}
        self.loss: GradientEdge | None = None
        self.kept: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    @contextmanager
    def watching(self, others: Iterable[Tensor]) -> Iterator[None]:
        """Note the tensors that autograd saves inside this context.

        Memory of the given tensors is left out.
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
        """The noted storages that autograd still keeps."""
        for reference in self.kept.values():
            storage = reference()
            if storage is not None:
                yield storage


def _same(tensor: Tensor) -> Tensor:
    return tensor
