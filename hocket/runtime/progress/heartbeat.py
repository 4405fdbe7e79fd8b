"""Progress page: memory that a worker and its watcher share.

After a worker died, the watcher reads the worker's last position from it. The watcher also uses it to stop all workers
at the same period.

Every field is one aligned 8-byte word with one writer. So no lock is needed, and a killed worker leaves no half-written
field. This file does not import torch.

Protocol for stopping:

1. The watcher sets `hold` on every page, then reads `periods` of every page. It sets `stop_at` on every page to the
   largest value + 2. It never waits for a worker.
2. A worker writes `periods` at each boundary between periods, then reads `hold`. If `hold` is set, the worker waits for
   `stop_at` and runs on to exactly that boundary.

No worker misses the boundary. If a worker passes boundary k without seeing `hold`, its write of k came before the
watcher's read, or the write was still on its way to memory and the watcher read k - 1. At boundary k + 1, at the
latest, the worker sees `hold`. So it waits at a boundary <= (k - 1) + 2 <= stop_at, and no worker has begun a period
beyond stop_at.

There is no deadlock. A worker waits only for the watcher, and the watcher waits for no worker. If the watcher dies, its
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
# Distance of the stop boundary from the newest boundary that the watcher has read (see the protocol above).
_AHEAD = 2
_POLL_S = 0.002


class WorkerState(IntEnum):
    """Activity of a worker, as written to its heartbeat page."""

    STARTING = 0
    RUNNING = 1
    WAITING = 2
    SAVING = 3
    HOLDING = 4
    FINISHED = 5


class _Word:
    """8-byte integer field of a `Heartbeat` page, as a descriptor."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, page: "Heartbeat", kind: type | None = None) -> int:
        return page.words[self._place]

    def __set__(self, page: "Heartbeat", value: int) -> None:
        page.words[self._place] = value


class Heartbeat:
    """Page of shared memory with one worker's progress.

    The worker writes:

        state: a `WorkerState`.
        beats: half-second heartbeats, counted by a separate thread.
        moves: instructions begun or waited for.
        step: number of the step, from 0.
        kind, stage, index, again: the instruction of the compute lane; kind is its number in Kind + 1, and 0 before the
            first instruction.
        periods: periods since the launch that have begun, or that begin next (see Observer.goes_on).

    The watcher writes:

        hold: 1 to ask the worker to wait for `stop`.
        stop: `stop_at` + 1; 0 if not known yet.
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
        """Create the file of a page, all zero, and map it."""
        path.write_bytes(bytes(8 * _WORDS))
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> "Heartbeat":
        """Map a page that exists."""
        with path.open("r+b") as stream:
            return cls(mmap.mmap(stream.fileno(), 8 * _WORDS))

    @classmethod
    def private(cls) -> "Heartbeat":
        """Create a page without a file, for this process only.

        It is for a worker and a watcher thread in the same process.
        """
        return cls(mmap.mmap(-1, 8 * _WORDS))

    def at(self, instruction: Instruction, step: int, index: int, state: WorkerState) -> None:
        """Record the instruction of the worker.

        It is called twice per instruction and costs about a microsecond.

        Arguments:
            step: number of the step, from 0.
            index: microbatch or update of the instruction.
            state: RUNNING or WAITING.
        """
        words = self.words
        words[3], words[4], words[5] = step, _KINDS[instruction.kind] + 1, instruction.stage
        words[6], words[7], words[0] = index, instruction.again, state
        words[2] += 1

    @property
    def place(self) -> str:
        """Position of the worker, as a phrase.

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
        """Block until the watcher has set `stop`; return `stop_at`."""
        before, self.state = self.state, WorkerState.HOLDING
        while self.stop == 0:
            sleep(_POLL_S)
        self.state = before
        return self.stop - 1


def agreed_stop(periods: Sequence[int]) -> int:
    """Compute `stop_at`, the number of periods after which all workers stop.

    Arguments:
        periods: `Heartbeat.periods` of each worker, read after `hold` was set on all pages.
    """
    return max(periods) + _AHEAD


def hold_all(pages: Sequence[Heartbeat]) -> int:
    """Ask all workers to stop at the same boundary, without blocking.

    Returns:
        Number of periods at that boundary.
    """
    for page in pages:
        page.hold = 1
    stop_at = agreed_stop([page.periods for page in pages])
    for page in pages:
        page.stop = stop_at + 1
    return stop_at
