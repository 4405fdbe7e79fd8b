"""Weight gradients: a backward adds them to buckets and publishes full buckets.

A parameter's gradient is moved into its bucket's flat memory as soon as autograd has computed it. The first backward
shows which parameters get gradients. Later backwards must give gradients to the same parameters.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hocket.errors import InputError
from hocket.runtime.update.buckets import Bucket, Buckets, Ready
from hocket.runtime.update.slots import WeightSlot

Arrival = tuple[str, float]
"""Parameter name, and the time at which its gradient was computed, in seconds."""
_CHANGES = "A model with control flow that depends on the data cannot be planned."


class Gradients:
    """Accumulation of weight gradients of one stage."""

    def __init__(self, buckets: Buckets) -> None:
        """Start without a running backward."""
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
        """Record when each gradient that is summed over devices is computed.

        Arguments:
            clock: current time in seconds.

        Returns:
            A list to which every later gradient is appended.
        """
        self._clock = clock
        return self._arrivals

    def watch(self, slot: WeightSlot) -> None:
        """Register hooks on the leaf tensors of a slot; call it once for each slot."""
        for name, leaf in slot.leaves.items():
            bucket, position = self._buckets.places[name]
            if self._buckets.summed[bucket]:
                leaf.register_post_accumulate_grad_hook(self._hook(bucket, position))  # type: ignore[no-untyped-call]

    def begin(self, slot: WeightSlot, sums: Sequence[Bucket], ready: Ready | None = None, counts: bool = True) -> None:
        """Prepare to receive the gradients of a backward.

        Arguments:
            slot: weights of the backward.
            sums: buckets to which the gradients are added; new buckets are used if it is empty.
            ready: called with each bucket that is summed over devices, in order, as soon as its last gradient is
                computed.
            counts: False to set every gradient of this backward to zero, because the loss has weight 0. The gradient of
                a mean over nothing is nan.
        """
        names = self._buckets.names
        self._fresh, self._counts, self._ready, self._published = not sums, counts, ready, 0
        self._active = list(sums) or [self._buckets.take(b) for b in range(len(names))]
        self._left = list(self._expected or map(len, names))
        if self._fresh and self._expected is not None:
            for b in range(len(names)):
                self._add_zeros(b)
        if not self._fresh and counts:
            for bucket, own in zip(self._active, names, strict=True):
                for name, gradient in zip(own, bucket.views or bucket.gradients, strict=True):
                    slot.leaves[name].grad = gradient

    def end(self, slot: WeightSlot) -> tuple[Bucket, ...]:
        """Finish a backward; return all buckets, with its gradients added."""
        if self._expected is None:
            for b in range(len(self._active)):
                self._add_zeros(b)
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

    def _add_zeros(self, number: int) -> None:
        """Set the gradients of tied parameters that this stage does not compute, but another one, to zero."""
        bucket, own = self._active[number], self._buckets.tied[number]
        if self._buckets.summed[number]:
            for k, name in enumerate(self._buckets.names[number]):
                if name in own and k not in self._touched[number]:
                    bucket.gradients[k] = bucket.views[k].zero_()

    def _hook(self, bucket: int, position: int) -> Callable[[Tensor], None]:
        """Return a hook that moves a parameter's gradient into its bucket.

        If the bucket is complete, the hook publishes it.
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
        """Publish the buckets before number `until`, in order (order.py, rule 2)."""
        if self._ready is not None:
            for b in range(self._published, until):
                if self._buckets.summed[b]:
                    self._ready(self._active[b])
            self._published = max(self._published, until)
