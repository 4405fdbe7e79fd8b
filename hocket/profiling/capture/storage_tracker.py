"""StorageTracker: current and peak bytes of tensors while some code runs.

Rules of this file: storages are counted, not tensors, so that views cost nothing. An older storage is counted only if
it is registered. Memory that one operation allocates and frees inside is not seen. Only operations of the thread that
entered are followed, but storages may be registered, and freed, in any thread.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class StorageTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context manager that counts the bytes of every storage created inside it.

    Storages of the backward pass are included.

    Attributes:
        live_bytes: bytes of the counted storages that exist now.
        peak_bytes: the highest `live_bytes` since the beginning, or since `reset_peak`.
        watch: function that is called with `live_bytes` after every operation; None for none.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live_bytes = 0
        self.peak_bytes = 0
        self.watch: Callable[[int], None] | None = None
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._lock = threading.RLock()  # a storage may be freed, and call back, while its own thread holds the lock

    def register(self, tensors: Iterable[Tensor]) -> None:
        """Count existing storages, or update the bytes of resized ones.

        Their bytes are subtracted when they are freed.
        """
        for tensor in tensors:
            self._add(tensor, counted=True, upgrade=True)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Ignore memory of torch's compilation.

        Compiled code and its buffers are registered (`hocket.profiling.capture.compiled`).
        """
        return True

    def reset_peak(self) -> None:
        """Restart the peak at the current bytes."""
        self.peak_bytes = self.live_bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "prim":  # a question about a tensor
            return func(*args, **(kwargs or {}))
        self._see((args, kwargs), counted=False)
        result = func(*args, **(kwargs or {}))
        self._see((result,), counted=True)
        if self.watch is not None:
            self.watch(self.live_bytes)
        return result

    def _see(self, values: Sequence[Any], counted: bool) -> None:
        """Add the tensors among values, and in lists inside them, faster than with torch's `tree_leaves`."""
        for value in values:
            if isinstance(value, Tensor):
                self._add(value, counted)
            elif isinstance(value, list | tuple):
                self._see(value, counted)
            elif isinstance(value, dict):
                self._see(list(value.values()), counted)

    def _add(self, tensor: Tensor, counted: bool, upgrade: bool = False) -> None:
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse tensors have no storage
            return
        key = storage._cdata
        if key in self._known and not (counted and upgrade):
            return
        with self._lock:
            if key in self._known and not (counted and upgrade):
                return
            size = storage.nbytes() if counted else 0
            if key in self._known:
                reference, before = self._known[key]
                self._known[key] = reference, size
                self.live_bytes += size - before
                self.peak_bytes = max(self.peak_bytes, self.live_bytes)
                return
            # The storage's Python object lives as long as the storage itself, so its end is the storage's end.
            self._known[key] = (weakref.ref(storage, lambda _, key=key: self._forget(key)), size)  # type: ignore[misc]
            self.live_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _forget(self, key: int) -> None:
        with self._lock:
            _, size = self._known.pop(key)
            self.live_bytes -= size


def storage_key(tensor: Tensor) -> int:
    """Identity of a tensor's storage; unique only while the storage exists."""
    return tensor.untyped_storage()._cdata


def unique_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages of some tensors, each counted once."""
    return sum({storage_key(t): t.untyped_storage().nbytes() for t in tensors}.values())
