"""Journal: append-only log of the events of a core, for replay.

A line is a record: a checksum, a space, and JSON. The first record holds the setup; each further record holds an
event and its time. A checksum covers the previous checksum and the record, so a changed, missing, duplicate or moved
record is detected. A power failure may leave an incomplete last line, which is dropped; it contains nothing that
`sync` had confirmed.

    with Journal.create(path, setup, policy) as journal:
        commands = journal.tell(event, now_s)     # the core's answer
        journal.sync()                            # durable: now carry the commands out
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
MAX_RECORD_BYTES = 16 * 2**20
_CHECKSUM = 32  # hexadecimal digits
_MAX_LINE = MAX_RECORD_BYTES + _CHECKSUM + 2


@dataclass(frozen=True)
class Contents:
    """Contents of a journal.

    Attributes:
        setup: the setup of the core.
        events: events with their times.
        size_bytes: size of all complete records.
        last: checksum of the last complete record.
        torn_bytes: size of an incomplete record at the end.
        path: path of the file, for messages.
    """

    setup: Setup
    events: tuple[tuple[float, Event], ...]
    size_bytes: int
    last: str
    torn_bytes: int = 0
    path: str = "journal"

    def replay(self, policy: Policy) -> Core:
        """Replay the events in a new core.

        Raises:
            InputError: the core rejects an event; the message names its line.
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
    """Core with a journal of its events; `sync` makes them durable.

    Attributes:
        core: the core that handles the events.
    """

    def __init__(self, path: Path, stream: IO[bytes], core: Core, size_bytes: int, last: str) -> None:
        self.core = core
        self._path, self._stream = path, stream
        self._size_bytes, self._last = size_bytes, last

    @classmethod
    def create(cls, path: str | Path, setup: Setup, policy: Policy) -> "Journal":
        """Create a file and a new core.

        Raises:
            InputError: the file exists already or cannot be written.
        """
        return cls.beside(path, setup, setup.core(policy))

    @classmethod
    def beside(cls, path: str | Path, setup: Setup, core: Core) -> "Journal":
        """Create a file for a new core that the caller drives.

        The caller passes each event to the core, and then to `record`.

        Raises:
            InputError: the file exists already or cannot be written.
        """
        path = Path(path)
        try:
            stream = open(path, "xb", buffering=0)  # noqa: SIM115  # the journal closes it
        except FileExistsError:
            step = "Choose another name."
            raise InputError(str(path), "an existing file", "a new file name", step) from None
        except (OSError, ValueError) as error:
            raise InputError(str(path), _why(error), "a writable path") from None
        journal = cls(path, stream, core, 0, "")
        try:
            journal._append({"format": FORMAT, "setup": as_data(setup)})
            journal.sync()
            fsync_folder(path.absolute().parent)
        except BaseException:  # remove the incomplete file
            stream.close()
            with suppress(OSError):
                path.unlink()
            raise
        return journal

    @classmethod
    def open(cls, path: str | Path, policy: Policy) -> "Journal":
        """Reopen a file: replay its events in a new core.

        An incomplete record at the end is truncated.

        Raises:
            InputError: the file is not a journal, is damaged, or has an event that the core rejects, and is unchanged;
                or it cannot be written.
        """
        path = Path(path)
        found = read(path)
        core = found.replay(policy)
        try:
            stream = open(path, "r+b", buffering=0)  # noqa: SIM115  # the journal closes it
            stream.truncate(found.size_bytes)
            stream.seek(found.size_bytes)
        except OSError as error:
            raise InputError(str(path), _why(error), "a writable file") from None
        journal = cls(path, stream, core, found.size_bytes, found.last)
        journal.sync()
        return journal

    def tell(self, event: Event, now_s: float) -> list[Command]:
        """Pass an event to the core, then write it to the journal.

        Raises:
            InputError: the core rejects the event, and it was not written; or the write failed, and the place is the
                journal's path. After a failed write the core is ahead of the file and must be discarded.
        """
        told = self.core.handle(event, now_s)
        self.record(event, now_s)
        return told

    def record(self, event: Event, now_s: float) -> None:
        """Write an event that the core has handled.

        Raises:
            InputError: the record is too large, or the write failed.
        """
        self._append({"now_s": now_s, **event_as_data(event)})

    def sync(self) -> None:
        """Make all written events survive a power failure.

        Raises:
            InputError: the disk reports an error.
        """
        try:
            os.fsync(self._stream.fileno())
        except OSError as error:
            raise InputError(str(self._path), _why(error), "a writable disk with free space") from None

    def close(self) -> None:
        """Sync and close the file."""
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
            while rest:  # a full disk writes a part; the next write raises the error
                rest = rest[self._stream.write(rest) :]
        except OSError as error:
            with suppress(OSError):  # readers drop an incomplete line
                self._stream.truncate(self._size_bytes)
                self._stream.seek(self._size_bytes)
            raise InputError(str(self._path), _why(error), "a writable disk with free space") from None
        self._last = checksum
        self._size_bytes += len(line)


def read(path: str | Path) -> Contents:
    """Read a journal of any size; an incomplete record at the end is omitted.

    Only records have a largest size. Other files are refused at their first line.

    Raises:
        InputError: the file is not a journal, or is damaged, with the line.
    """
    path = Path(path)
    events: list[tuple[float, Event]] = []
    setup: Setup | None = None
    size, last, torn = 0, "", 0
    for number, line in enumerate(_lines(path), 1):
        place = f"{path}, line {number}"
        if not line.endswith(b"\n"):
            torn = len(line)
            if len(line) == _MAX_LINE or _valid(
                line[:-1], last
            ):  # a complete or endless record without a newline is damage, not an incomplete write
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
            # The beginning is enough to refuse most other files, which may be large and without lines.
            if not stream.peek(_CHECKSUM)[:_CHECKSUM].isalnum():
                raise _no_journal(path)
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
    step = f"Records before it are intact: the first {size_bytes} bytes."
    return InputError(
        place, "a record that was changed after it was written", "a record that matches its checksum", step
    )


def _no_journal(path: Path) -> InputError:
    return InputError(str(path), "no journal record at the beginning", f"a journal of format {FORMAT}")


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
