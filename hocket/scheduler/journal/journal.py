"""Journal: every event that a core was told, in a file that only grows; whoever reads it has the core again.

A line is a record: a checksum, a space, and the record in JSON. The first holds the setup, each other one an event and its time.
A checksum is over the one before it and the record, so that a record that was changed, left out, doubled or moved is found. What
was being written when the power failed is a line without an end: it is dropped, and with it nothing that `sync` had promised.

    with Journal.create(path, setup, policy) as journal:
        commands = journal.tell(event, now_s)     # the core's answer
        journal.sync()                            # now it is safe: carry the commands out
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from hocket.errors import InputError
from hocket.scheduler.core.core import Core, Policy
from hocket.scheduler.core.events import Command, Event
from hocket.scheduler.journal.core_setup import Setup
from hocket.scheduler.journal.serialization import event_as_data, event_of
from hocket.util.documents import parse_json
from hocket.util.files import fsync_folder
from hocket.util.schema import as_data, read_as

__all__ = ["Contents", "Journal", "read"]

FORMAT = "hocket-journal-1"
MAX_BYTES = 512 * 2**20
MAX_RECORD_BYTES = 16 * 2**20
_CHECKSUM = 32  # hexadecimal digits
_MAX_LINE = MAX_RECORD_BYTES + _CHECKSUM + 2


@dataclass(frozen=True)
class Contents:
    """What a journal says.

    Attributes:
        events: with their times.
        size_bytes: of all whole records; last: checksum of the last. torn_bytes: after it, of a record cut off.
        path: of the file, for messages.
    """

    setup: Setup
    events: tuple[tuple[float, Event], ...]
    size_bytes: int
    last: str
    torn_bytes: int = 0
    path: str = "journal"

    def replay(self, policy: Policy) -> Core:
        """The core that was told these events.

        Raises:
            InputError: an event that cannot be, with its line: no journal of a core.
        """
        core = self.setup.core(policy)
        for line, (now_s, event) in enumerate(self.events, 2):
            try:
                core.handle(event, now_s)
            except InputError as error:
                place = f"{self.path}, line {line}: {error.place}"
                raise InputError(place, error.found, error.expected, error.next_step) from None
        return core


class Journal:
    """A core whose events are written down. What is told is safe after the next `sync`, and not before.

    Attributes:
        core: that is told the events.
    """

    def __init__(self, path: Path, stream: IO[bytes], core: Core, size_bytes: int, last: str) -> None:
        self.core = core
        self._path, self._stream = path, stream
        self._size_bytes, self._last = size_bytes, last

    @classmethod
    def create(cls, path: str | Path, setup: Setup, policy: Policy) -> "Journal":
        """A new file, and a new core.

        Raises:
            InputError: it is there already, or cannot be written.
        """
        return cls.beside(path, setup, setup.core(policy))

    @classmethod
    def beside(cls, path: str | Path, setup: Setup, core: Core) -> "Journal":
        """A new file for a core that was not told anything yet, and that others tell: `record` what it was told.

        Raises:
            InputError: it is there already, or cannot be written.
        """
        path = Path(path)
        try:
            stream = open(path, "xb", buffering=0)  # noqa: SIM115  # the journal closes it
        except FileExistsError:
            step = "Give another name."
            raise InputError(str(path), "a file that is there already", "a name that is free", step) from None
        except (OSError, ValueError) as error:
            raise InputError(str(path), _why(error), "a place that can be written") from None
        journal = cls(path, stream, core, 0, "")
        try:
            journal._append({"format": FORMAT, "setup": as_data(setup)})
            journal.sync()
            fsync_folder(path.absolute().parent)
        except BaseException:  # nothing half-written stays
            stream.close()
            with suppress(OSError):
                path.unlink()
            raise
        return journal

    @classmethod
    def open(cls, path: str | Path, policy: Policy) -> "Journal":
        """Go on with a file: its events are told to a new core, a record cut off at its end is cut away.

        Raises:
            InputError: it is no journal, or is damaged; nothing was changed.
        """
        path = Path(path)
        found = read(path)
        core = found.replay(policy)
        try:
            stream = open(path, "r+b", buffering=0)  # noqa: SIM115  # the journal closes it
            stream.truncate(found.size_bytes)
            stream.seek(found.size_bytes)
        except OSError as error:
            raise InputError(str(path), _why(error), "a file that can be written") from None
        journal = cls(path, stream, core, found.size_bytes, found.last)
        journal.sync()
        return journal

    def tell(self, event: Event, now_s: float) -> list[Command]:
        """Tell the core an event and write it down.

        Raises:
            InputError: the event cannot be: it is not written; or it could not be written: the core knows more than the file
                then, and is to be thrown away.
        """
        told = self.core.handle(event, now_s)
        self.record(event, now_s)
        return told

    def record(self, event: Event, now_s: float) -> None:
        """Write down an event that the core was told.

        Raises:
            InputError: it could not be written.
        """
        self._append({"now_s": now_s, **event_as_data(event)})

    def sync(self) -> None:
        """Make what was told survive a loss of power.

        Raises:
            InputError: the disk does not take it.
        """
        try:
            os.fsync(self._stream.fileno())
        except OSError as error:
            raise InputError(str(self._path), _why(error), "a disk that takes it") from None

    def close(self) -> None:
        """Sync and let go of the file."""
        if not self._stream.closed:
            self.sync()
            self._stream.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, data: dict[str, Any]) -> None:
        record = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
        if len(record) > MAX_RECORD_BYTES:
            raise InputError(str(self._path), f"a record of {len(record)} bytes", f"at most {MAX_RECORD_BYTES}")
        checksum = _checksum(self._last, record)
        line = checksum.encode() + b" " + record + b"\n"
        try:
            rest = memoryview(line)
            while rest:  # a disk takes what it has room for; what is left over is what it refuses, and says why
                rest = rest[self._stream.write(rest) :]
        except OSError as error:
            with suppress(OSError):  # what is left of the line is dropped by who reads it
                self._stream.truncate(self._size_bytes)
                self._stream.seek(self._size_bytes)
            raise InputError(str(self._path), _why(error), "a disk that takes it") from None
        self._last = checksum
        self._size_bytes += len(line)


def read(path: str | Path) -> Contents:
    """What a journal says; a record cut off at its end is left out.

    Raises:
        InputError: it is no journal, is larger than a journal may be, or is damaged: with the line.
    """
    path = Path(path)
    events: list[tuple[float, Event]] = []
    setup: Setup | None = None
    size, last, torn = 0, "", 0
    for number, line in enumerate(_lines(path), 1):
        place = f"{path}, line {number}"
        if not line.endswith(b"\n"):
            torn = len(line)
            if _valid(line[:-1], last) or len(line) == _MAX_LINE:  # whole but for its end, or endless: that is no tear
                raise _damaged(place, size) if setup is not None else _no_journal(path)
            break
        if not _valid(line[:-1], last):
            raise _damaged(place, size) if setup is not None else _no_journal(path)
        last = line[:_CHECKSUM].decode()
        size += len(line)
        data = parse_json(line[_CHECKSUM + 1 :], place)
        if setup is None:
            setup = _setup(data, place)
        else:
            events.append(_timed(data, place))
    if setup is None:
        raise _no_journal(path)
    return Contents(setup, tuple(events), size, last, torn, str(path))


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > MAX_BYTES:
                raise InputError(str(path), f"a file of {size} bytes", f"a journal, at most {MAX_BYTES} bytes")
            while line := stream.readline(_MAX_LINE):
                yield line
    except FileNotFoundError:
        raise InputError(str(path), "no such file", "a journal") from None
    except (OSError, ValueError) as error:
        raise InputError(str(path), _why(error), "a journal") from None


def _checksum(last: str, record: bytes) -> str:
    return blake2b(last.encode() + record, digest_size=_CHECKSUM // 2).hexdigest()


def _valid(line: bytes, last: str) -> bool:
    return (
        line[_CHECKSUM : _CHECKSUM + 1] == b" " and line[:_CHECKSUM] == _checksum(last, line[_CHECKSUM + 1 :]).encode()
    )


def _setup(data: Any, place: str) -> Setup:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else data
        raise InputError(f"{place}: format", repr(found)[:80], FORMAT)
    return read_as(Setup, data.get("setup"), f"{place}: setup")


def _timed(data: Any, place: str) -> tuple[float, Event]:
    now_s = data.pop("now_s", None) if isinstance(data, dict) else None
    if not isinstance(now_s, int | float) or isinstance(now_s, bool):
        raise InputError(f"{place}: now_s", repr(now_s)[:80], "seconds")
    return float(now_s), event_of(data, place)


def _damaged(place: str, size_bytes: int) -> InputError:
    step = f"The records before it are whole: they are the first {size_bytes} bytes."
    return InputError(
        place, "a record that was changed after it was written", "the record that its checksum is of", step
    )


def _no_journal(path: Path) -> InputError:
    return InputError(str(path), "no record of a journal at its beginning", f"a journal of format {FORMAT}")


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
