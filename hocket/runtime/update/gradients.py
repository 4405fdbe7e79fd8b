"""Gradients: a backward pass adds its weight gradients to buckets.

Each bucket is handed out as soon as it is whole.

Rules of this file: a parameter's gradient moves into its bucket's flat memory the moment that it is there. Which parameters get
one is learnt from the first pass, and later ones must do the same.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hocket.errors import InputError
from hocket.runtime.update.buckets import Bucket, Buckets, Ready
from hocket.runtime.update.slots import WeightSlot

Arrival = tuple[str, float]
"""A parameter, and when its gradient was there, in seconds."""
_CHANGES = "A model whose course follows from the data cannot be planned."


class Gradients:
    """See the head of this file."""

    def __init__(self, buckets: Buckets) -> None:
        """No pass is running."""
        self._buckets = buckets
        self._active: list[Bucket] = []
        self._fresh = self._counts = True
        self._left: list[int] = []
        self._published = 0
        self._ready: Ready | None = None
        self._touched: list[set[int]] = [set() for _ in buckets.names]
        self._expected: list[int] | None = None
        self._clock: Callable[[], float] | None = None
        self._arrivals: list[Arrival] = []

    def note(self, clock: Callable[[], float]) -> Sequence[Arrival]:
        """Record the arrival of each gradient that is summed over devices.

        Returns the growing list.
        """
        self._clock = clock
        return self._arrivals

    def watch(self, slot: WeightSlot) -> None:
        """Passes over this slot's leaves will be noticed: once for each slot."""
        for name, leaf in slot.leaves.items():
            bucket, position = self._buckets.places[name]
            if self._buckets.summed[bucket]:
                leaf.register_post_accumulate_grad_hook(self._hook(bucket, position))  # type: ignore[no-untyped-call]

    def begin(self, slot: WeightSlot, sums: Sequence[Bucket], ready: Ready | None = None, counts: bool = True) -> None:
        """Prepare a backward pass.

        Gradients will be added to `sums`, or to fresh buckets if there are none.

        Arguments:
            ready: called with each bucket that is summed over devices, in order, as soon as its last gradient is there.
            counts: False: every gradient of the pass is zero, whatever comes out: a mean over nothing has none that is a number.
        """
        names = self._buckets.names
        self._fresh, self._counts, self._ready, self._published = not sums, counts, ready, 0
        self._active = list(sums) or [self._buckets.take(b) for b in range(len(names))]
        self._left = list(self._expected or map(len, names))
        if not self._fresh and counts:
            for bucket, own in zip(self._active, names, strict=True):
                for name, gradient in zip(own, bucket.views or bucket.gradients, strict=True):
                    slot.leaves[name].grad = gradient

    def end(self, slot: WeightSlot) -> tuple[Bucket, ...]:
        """After a backward pass: the buckets with what it added."""
        for b, (bucket, names) in enumerate(zip(self._active, self._buckets.names, strict=True)):
            for k, name in enumerate(names):
                leaf = slot.leaves[name]
                if not self._buckets.summed[b]:
                    if self._counts:
                        bucket.gradients[k] = leaf.grad
                    elif self._fresh and leaf.grad is not None:
                        bucket.gradients[k] = torch.zeros_like(leaf.grad)
                elif bucket.gradients[k] is None and b >= self._published:
                    bucket.views[k].zero_()
                leaf.grad = None
        if self._expected is None:
            self._expected = [len(touched) for touched in self._touched]
        self._publish(len(self._active))
        found, self._active, self._ready = tuple(self._active), [], None
        return found

    def _hook(self, bucket: int, position: int) -> Callable[[Tensor], None]:
        """Hook that moves a parameter's gradient into the flat tensor when it arrives.

        It also counts the gradient.
        """

        def accumulated(leaf: Tensor) -> None:
            active = self._active[bucket]
            if not self._counts:
                leaf.grad = active.views[position].zero_() if self._fresh else active.gradients[position]
            elif self._fresh:
                view = active.views[position]
                with torch.no_grad():
                    view.copy_(leaf.grad)  # type: ignore[arg-type]
                leaf.grad = view
            if self._expected is None:
                self._touched[bucket].add(position)
            elif position not in self._touched[bucket]:
                name = self._buckets.names[bucket][position]
                raise InputError(
                    f"parameter {name}", "a gradient", "no gradient, as in the first backward pass", _CHANGES
                )
            active.gradients[position] = leaf.grad
            if self._clock is not None:
                self._arrivals.append((self._buckets.names[bucket][position], self._clock()))
            self._left[bucket] -= 1
            if self._left[bucket] == 0 and self._ready is not None and self._expected is not None:
                done = self._published
                while done < len(self._left) and self._left[done] <= 0:
                    done += 1
                self._publish(done)

        return accumulated

    def _publish(self, until: int) -> None:
        """Publish the buckets up to a number, in bucket order.

        See rule 2 of the program semantics.
        """
        if self._ready is not None:
            for b in range(self._published, until):
                if self._buckets.summed[b]:
                    self._ready(self._active[b])
            self._published = max(self._published, until)
