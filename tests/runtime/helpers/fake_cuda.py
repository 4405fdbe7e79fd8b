"""Fake GPU: streams, events and memory of torch.cuda without a GPU.

It derives which work is known to be complete, and records every unordered use of memory.

Work that a thread begins is put into the current stream and is over only when somebody has waited for it: a stream knows its own work
and that of events for which it has waited; the host knows what it has waited for, and tells every stream that gets work afterwards. Of
memory it is known which stream asked for it, which streams used it, and which of these the allocator was told of. It must be given
back when each of the others is known to be over, or was told. Tensors lie on the CPU; only the order is played.
"""

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

Clock = dict[int, int]
"""How much of each stream's work is over, by the stream's number."""
Work = tuple[int, int]
"""A stream's number, and how much work it had."""


class FakeCuda:
    """Puts itself in the place of torch.cuda's streams.

    Attributes:
        wrong: what was found that nothing orders.
        held_back: times that memory was emptied which the allocator keeps until another stream has done what it has to do now.
        waits: names of threads that have waited, each time.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wrong: list[str] = []
        self.waits: list[str] = []
        self.held_back = 0
        self._lock = threading.RLock()
        self._over: Clock = {}
        self.streams: list[Stream] = []
        self._memory: dict[int, _Memory] = {}
        self._local = threading.local()
        self.default = Stream(self)
        for name, one in {
            "Stream": lambda *_: Stream(self),
            "Event": lambda *_: Event(self),
            "stream": self._in,
            "current_stream": lambda *_: self.current,
            "default_stream": lambda *_: self.default,
            "set_device": lambda *_: None,
            "synchronize": lambda *_: self.waited({stream.number: stream.work for stream in self.streams}),
        }.items():
            monkeypatch.setattr(torch.cuda, name, one)
        monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: self._recorded(tensor, stream))
        monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor)
        resize = torch.UntypedStorage.resize_

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            if size:
                self._asked(storage)
            else:
                self._gone(storage._cdata, "emptied")
            return resize(storage, size)

        monkeypatch.setattr(torch.UntypedStorage, "resize_", resized)

    @property
    def current(self) -> "Stream":
        """The stream of this thread."""
        found: Stream = getattr(self._local, "stream", self.default)
        return found

    def run(self, name: str, uses: Iterable[torch.UntypedStorage], knows: Iterable[Work]) -> Work:
        """Put work into the current stream.

        Arguments:
            uses: memory that it reads or writes. knows: of which work it counts on that it is over.

        """
        with self._lock:
            stream = self.current
            stream.learn(self._over)
            for number, work in knows:
                if number != stream.number and stream.clock.get(number, 0) < work:
                    self.wrong.append(f"{name} in stream {stream.number} does not wait for stream {number}")
            stream.work += 1
            stream.clock[stream.number] = stream.work
            for storage in uses:
                self._asked(storage, new=False)
                self._memory[storage._cdata].users[stream.number] = stream.work
            return stream.number, stream.work

    def waited(self, clock: Clock) -> None:
        """The host knows that so much is over."""
        with self._lock:
            self.waits.append(threading.current_thread().name)
            _merge(self._over, clock)

    @contextmanager
    def _in(self, stream: "Stream") -> Iterator[None]:
        before, self._local.stream = self.current, stream
        yield
        self._local.stream = before

    def _asked(self, storage: torch.UntypedStorage, new: bool = True) -> None:
        with self._lock:
            key = storage._cdata
            if new or key not in self._memory:
                dies = weakref.ref(storage, lambda _: self._gone(key, "let go"))
                self._memory[key] = _Memory(self.current.number, dies)

    def _recorded(self, tensor: Tensor, stream: "Stream") -> None:
        with self._lock:
            self._asked(tensor.untyped_storage(), new=False)
            self._memory[tensor.untyped_storage()._cdata].told.add(stream.number)

    def _gone(self, key: int, how: str) -> None:
        with self._lock:
            memory = self._memory.pop(key, None)
            if memory is None:
                return
            for number, work in memory.users.items():
                if number != memory.maker and number not in memory.told and self._over.get(number, 0) < work:
                    self.wrong.append(f"memory of stream {memory.maker} is {how} while stream {number} uses it")
            here = self.current.number
            if how == "emptied" and any(n != here and self.streams[n].work > self._over.get(n, 0) for n in memory.told):
                self.held_back += 1


class _Memory:
    """Streams of a piece of memory.

    They are the stream that allocated it, the streams that used it and until when, and the streams that the allocator
    was told of.
    """

    def __init__(self, maker: int, dies: Any) -> None:
        self.maker, self.dies = maker, dies
        self.users: Clock = {}
        self.told: set[int] = set()


class Stream:
    """A stream: how much work it has, and what it knows to be over before its next."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda, self.number, self.work = cuda, len(cuda.streams), 0
        self.clock: Clock = {}
        cuda.streams.append(self)

    def learn(self, clock: Clock) -> None:
        """Order the next work after the given work."""
        _merge(self.clock, clock)

    def wait_event(self, event: "Event") -> None:
        """Order the next work after the event."""
        self.learn(event.clock)

    def record_event(self) -> "Event":
        """A new event behind all that is in this stream."""
        event = Event(self._cuda)
        event.record(self)
        return event

    def synchronize(self) -> None:
        """The host waits for all that is in this stream."""
        self._cuda.waited({**self.clock, self.number: self.work})


class Event:
    """An event: what is over when it is."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self.clock: Clock = {}

    def record(self, stream: Stream) -> None:
        """Behind all that is in a stream."""
        self.clock = {**stream.clock, stream.number: stream.work}

    def synchronize(self) -> None:
        """The host waits for it."""
        self._cuda.waited(self.clock)


def _merge(clock: Clock, other: Clock) -> None:
    for number, work in other.items():
        clock[number] = max(clock.get(number, 0), work)
