"""Tensor-parallel group of threads in one process, to try a split on any machine.

Rules of this file: sums are computed in rank order, so that every run gives the same bits. If one thread fails, all
end.
Only for tensors on the CPU: a GPU has one thread for all backward passes, and that thread cannot wait for itself.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from hocket.profiling.tensor_parallel.group import TensorParallelGroup

T = TypeVar("T")

_PATIENCE_S = 60.0  # limit for a rank that never reaches a collective of the others


class ThreadedGroup:
    """A group of `width` simulated devices."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._barrier = threading.Barrier(width, timeout=_PATIENCE_S)
        self._given: list[Tensor] = [torch.empty(0)] * width

    def run(self, work: Callable[[int, TensorParallelGroup], T]) -> list[T]:
        """Run `work(rank, members)` in one thread for each rank; return results by rank.

        Raises:
            Exception: the first error in rank order that is not a consequence of another rank's error.
        """
        self._barrier.reset()

        def one(rank: int) -> T:
            try:
                return work(rank, _Member(self, rank))
            except BaseException:
                self._barrier.abort()
                raise

        with ThreadPoolExecutor(self.width) as pool:
            futures = [pool.submit(one, rank) for rank in range(self.width)]
        errors = [e for future in futures if (e := future.exception()) is not None]
        if errors:
            raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
        return [future.result() for future in futures]

    def meet(self, rank: int, tensor: Tensor, found: Callable[[list[Tensor]], Tensor]) -> Tensor:
        """Apply a function to the tensors of all ranks; every rank calls this method.

        Arguments:
            tensor: this rank's tensor.
            found: function from all ranks' tensors, in rank order, to this rank's result.

        Raises:
            ValueError: the tensors have different shapes.
        """
        self._given[rank] = tensor.detach()
        self._barrier.wait()
        shapes = {tuple(given.shape) for given in self._given}
        result = found(self._given) if len(shapes) == 1 else tensor
        self._barrier.wait()  # no tensor changes before all ranks have read it
        if len(shapes) > 1:
            raise ValueError(f"tensors of different shapes {sorted(shapes)} in one collective")
        return result


class _Member:
    """A simulated tensor-parallel group, as one of its ranks sees it. Each rank is a thread."""

    def __init__(self, together: ThreadedGroup, rank: int) -> None:
        self._together, self._rank = together, rank

    def total(self, tensor: Tensor) -> Tensor:
        return self._together.meet(self._rank, tensor, _sum)

    def gathered(self, tensor: Tensor, width: int) -> Tensor:
        return self._together.meet(self._rank, tensor, torch.stack)

    def scattered(self, tensor: Tensor) -> Tensor:
        return self._together.meet(self._rank, tensor, lambda given: _sum([one[self._rank] for one in given]))


def _sum(given: list[Tensor]) -> Tensor:
    total = given[0].clone()
    for one in given[1:]:
        total += one
    return total
