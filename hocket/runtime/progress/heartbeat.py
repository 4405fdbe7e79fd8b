"""Progress page: memory that a worker and its watcher share.

The watcher reads from it where the worker stood when it died. Through it the watcher asks all workers to stop at the
same period.

Rules of this file: every field is one aligned 8-byte word with one writer, so that no lock is needed and a killed worker
leaves nothing half-written. No torch.

Stopping. The watcher sets `hold` on every page, then reads `periods` of every page, then sets `stop_at` = the largest
+ 2 on every page; it never waits for a worker. A worker writes `periods` at each boundary between periods, then reads
`hold`; when it is set the worker waits for `stop_at` and runs on to exactly that boundary.

- No worker misses it. If a worker passes boundary k without seeing `hold`, its write of k came before the watcher's read, or
  was at most still on its way to memory while the read found k - 1; at boundary k + 1, at the latest, it sees `hold`.
  So it waits at a boundary <= (k - 1) + 2 <= stop_at, and nobody has begun a period beyond stop_at.
- Nothing deadlocks. A worker waits only for the watcher, and the watcher waits for nobody; when the watcher dies its
  workers die with it.
"""

import mmap
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path

from hocket.program.instruction import UPDATE_KINDS, Instruction, Kind

_WORDS = 16
_KINDS = {kind: number for number, kind in enumerate(Kind)}
_NAMES = tuple(Kind)
# Behind the newest boundary that a worker may have passed unseen, so that it meets the one after it.
_AHEAD = 2
_POLL_S = 0.002


class WorkerState(IntEnum):
    """State of a worker."""

    STARTING = 0
    RUNNING = 1
    WAITING = 2
    SAVING = 3
    HOLDING = 4
    FINISHED = 5


class _Word:
    """One 8-byte field of the page."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, page: "Heartbeat", kind: type | None = None) -> int:
        return page.words[self._place]

    def __set__(self, page: "Heartbeat", value: int) -> None:
        page.words[self._place] = value


class Heartbeat:
    """Page of shared memory with one worker's progress.

    Written by the worker: `state`, `beats` (half-second heartbeats of a thread of its own), `moves` (instructions begun or
    waited for), `step` (counted from 0), `kind`, `stage`, `index` and `again` of the instruction of the compute lane (kind
    is 0 before the first, else its number in Kind + 1), `periods` completed since the launch.
    Written by the watcher: `hold`, and `stop_at` + 1 in `stop` (0: not known yet).
    """

    state = _Word(0)
    beats = _Word(1)
    moves = _Word(2)
    step = _Word(3)
    kind = _Word(4)
    stage = _Word(5)
    index = _Word(6)
    again = _Word(7)
    periods = _Word(8)
    hold = _Word(12)
    stop = _Word(13)

    def __init__(self, memory: mmap.mmap) -> None:
        self.words = memoryview(memory).cast("q")

    @classmethod
    def create(cls, path: Path) -> "Heartbeat":
        """Make the file of a page, all zero, and map it."""
        path.write_bytes(bytes(8 * _WORDS))
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> "Heartbeat":
        """Map a page that exists."""
        with path.open("r+b") as stream:
            return cls(mmap.mmap(stream.fileno(), 8 * _WORDS))

    @classmethod
    def private(cls) -> "Heartbeat":
        """A page of this process alone.

        For a worker with a watcher in a thread of the same process.
        """
        return cls(mmap.mmap(-1, 8 * _WORDS))

    def at(self, instruction: Instruction, step: int, index: int, state: WorkerState) -> None:
        """Note that the worker is at this instruction.

        `index` is its microbatch or update, as people count them.

        Called twice an instruction: about a microsecond.
        """
        words = self.words
        words[3], words[4], words[5] = step, _KINDS[instruction.kind] + 1, instruction.stage
        words[6], words[7], words[0] = index, instruction.again, state
        words[2] += 1

    @property
    def place(self) -> str:
        """Position of the worker for people.

        For example "at step 12 in `backward 1 #3`", with steps from 1.
        """
        if self.kind == 0:
            return "before its first instruction"
        if self.state == WorkerState.SAVING:
            return f"after step {self.step + 1} while it saved a checkpoint"
        kind = _NAMES[self.kind - 1]
        mark = "u" if kind in UPDATE_KINDS else "#"
        again = " again" if self.again else ""
        return f"at step {self.step + 1} in `{kind}{again} {self.stage} {mark}{self.index}`"

    def wait_for_stop(self, sleep: Callable[[float], None] = time.sleep) -> int:
        """Block until the watcher has said after how many periods all stop."""
        before, self.state = self.state, WorkerState.HOLDING
        while self.stop == 0:
            sleep(_POLL_S)
        self.state = before
        return self.stop - 1


def agreed_stop(periods: Sequence[int]) -> int:
    """Number of periods after which all workers stop.

    Determined from their numbers after all were told to hold.
    """
    return max(periods) + _AHEAD


def hold_all(pages: Sequence[Heartbeat]) -> int:
    """Ask all workers to stop at the same boundary; return its number of periods.

    Never blocks.
    """
    for page in pages:
        page.hold = 1
    stop_at = agreed_stop([page.periods for page in pages])
    for page in pages:
        page.stop = stop_at + 1
    return stop_at
