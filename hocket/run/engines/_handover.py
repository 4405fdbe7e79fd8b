"""Handover: what it takes to pass tensors from lane to lane. Nothing on a CPU; on CUDA lanes are streams as well.

A value is given with an event behind the work that makes it; the lane that takes it lets its own stream wait for that
event, and tells the allocator that it uses the memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hocket.run.weights import Bucket


@dataclass(frozen=True)
class _Given:
    thing: Any
    event: Any


class Handover:
    """Passes values between the lanes of one device.

    Attributes:
        needed: whether there is anything to do.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self.needed = device, device.type == "cuda"

    @contextmanager
    def lane(self) -> Iterator[None]:
        """What a lane's thread runs in: a stream of its own."""
        if not self.needed:
            yield
            return
        torch.cuda.set_device(self._device)
        with torch.cuda.stream(torch.cuda.Stream(self._device)):  # type: ignore[no-untyped-call]
            yield

    def given(self, thing: Any) -> Any:
        """A value as it goes into an inbox; called in the thread whose stream has made it."""
        if not self.needed:
            return thing
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return _Given(thing, event)

    def taken(self, thing: Any) -> Any:
        """A value as it came out of an inbox, ready for this thread's stream."""
        if not isinstance(thing, _Given):
            return thing
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(thing.event)
        for tensor in _tensors(thing.thing):
            tensor.record_stream(stream)
        return thing.thing

    def synchronize(self) -> None:
        """Wait for this thread's stream, where times are taken."""
        if self.needed:
            torch.cuda.current_stream(self._device).synchronize()


def _tensors(thing: Any) -> tuple[Tensor, ...]:
    return thing.flats if isinstance(thing, Bucket) else thing
