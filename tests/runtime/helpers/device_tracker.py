"""Tracker of device memory, independent of the memory manager.

Each storage that an operation creates belongs to a device, with its current bytes.

Nothing is asked of the memory manager. Host buffers are none of an operation's results, and neither is the job's own model.
"""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class DeviceTracker(TorchDispatchMode):
    """Context manager that tracks the peak of device memory.

    `peak_bytes` is the highest number of bytes after any operation inside.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak_bytes = 0
        self._own: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._foreign: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def register(self, tensors: Iterable[Tensor]) -> None:
        """Register tensors that are on a device already."""
        for tensor in tensors:
            self._note(self._own, tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for thing in tree_leaves((args, kwargs or {})):
            if isinstance(thing, Tensor):
                self._note(self._foreign, thing)
        result = func(*args, **(kwargs or {}))
        before = len(self._own)
        for thing in tree_leaves(result):
            if isinstance(thing, Tensor):
                self._note(self._own, thing)
        if len(self._own) == before and func is not torch.ops.aten.copy_.default:  # what is filled again is copied into
            return result
        living = [storage for reference in self._own.values() if (storage := reference()) is not None]
        live_bytes = sum(storage.nbytes() for storage in living)
        if live_bytes > self.peak_bytes:
            self.peak_bytes = live_bytes
            self.noted()
        return result

    def noted(self) -> None:
        """Handle a new peak."""

    def _note(self, where: dict[int, weakref.ref[torch.UntypedStorage]], tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._own and key not in self._foreign:
            where[key] = weakref.ref(storage, lambda _: where.pop(key, None))
