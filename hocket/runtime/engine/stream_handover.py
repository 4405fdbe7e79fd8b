"""Stream handover: passes tensors from lane to lane.

On a CPU there is nothing to do. On CUDA each lane is a stream. A value is handed over with an event after the work
that computes it. The receiving lane makes its own stream wait for that event, and tells the allocator that the stream
uses the memory.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hocket.runtime.swapping.cuda_streams import Streams, has_streams
from hocket.runtime.update.buckets import Bucket
from hocket.runtime.update.clipping import Squares
from hocket.runtime.update.slots import WeightSlot

_NOTHING = nullcontext()


@dataclass(frozen=True)
class _Given:
    thing: Any
    event: Any


class StreamHandover:
    """Passes values between the lanes of one device.

    Attributes:
        device: torch device of the tensors.
        needed: True on CUDA.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.needed = device, has_streams(device)
        self._memory = Streams(device)
        self._streams: dict[str, torch.cuda.Stream] = {}

    def lane(self, name: str) -> AbstractContextManager[Any]:
        """Return the context that makes a lane's CUDA stream current."""
        if not self.needed:
            return _NOTHING
        if name not in self._streams:
            self._streams[name] = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        return torch.cuda.stream(self._streams[name])

    def given(self, thing: Any) -> Any:
        """Wrap a value, with a CUDA event, to hand it over to another lane.

        The stream that computes the value must be current.
        """
        if not self.needed:
            return thing
        return _Given(thing, self.event())

    def taken(self, thing: Any) -> Any:
        """Unwrap a value from `given`, for use in the current stream."""
        if not isinstance(thing, _Given):
            return thing
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(thing.event)
        for tensor in _tensors(thing.thing):
            tensor.record_stream(stream)
        return thing.thing

    def event(self) -> Any:
        """Record a CUDA event after all work in the current stream; None on a CPU."""
        if not self.needed:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait_all(self) -> None:
        """Wait for all streams of the device, between segments."""
        if self.needed:
            torch.cuda.synchronize(self.device)

    def synchronize(self) -> None:
        """Wait for the current stream, to measure times."""
        self._memory.settle()


def _tensors(thing: Any) -> tuple[Tensor, ...]:
    """Return tensors that cover all memory of a value."""
    match thing:
        case None:
            return ()
        case tuple():
            return thing
        case dict():  # the batch's tensors by name
            return tuple(thing.values())
        case Bucket() if not thing.flats and not thing.parts:
            return tuple(gradient for gradient in thing.gradients if gradient is not None)
        case Bucket() | WeightSlot() | Squares():
            return (*thing.flats, *thing.parts)  # after a reduce-scatter only the part is left
    return tuple(thing.flats)
