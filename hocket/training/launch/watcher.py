"""Watcher of a run's local workers, until all are done or one has failed.

local.py starts the workers. The watcher never waits for one worker only. This file does not import torch.
"""

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from hocket.errors import InternalError, WorkerLost
from hocket.runtime.progress.heartbeat import Heartbeat, WorkerState, hold_all
from hocket.training.launch import fork_server
from hocket.training.launch.failures import Failure, advice, first_cause, understand
from hocket.training.worker.monitor.listener import Listener
from hocket.training.worker.options import Options
from hocket.util.documents import parse_json

_LOOK_S = 0.1
# Wait for the cause of a failure, if only lost connections are known.
_GRACE_S = 5.0
_MAX_LINE_BYTES = 2**20
_READ_BYTES = 2**16


@dataclass
class LocalWorker:
    """One worker, as the watcher sees it.

    Attributes:
        called: name of the worker in messages, without the process id.
        page: progress page of the worker.
        reports: file descriptor of the pipe with the worker's reports, to read.
        control: file descriptor of the write end of another pipe; the worker ends when this end closes.
        log: file of the worker's output.
        rest: beginning of a report that is not complete yet.
        open: True until the pipe of reports ends.
        done: True after the worker's last report.
        failed: True after an error.
        beats: number of the last heartbeat that was seen.
        silent_s: seconds since that heartbeat.
    """

    rank: int
    called: str
    process: "fork_server.ForkedProcess | subprocess.Popen[bytes]"
    page: Heartbeat
    reports: int
    control: int
    log: Path
    rest: bytes = b""
    open: bool = True
    done: bool = False
    failed: bool = False
    beats: int = -1
    silent_s: float = 0.0

    @property
    def name(self) -> str:
        """Name of the worker in messages, with its process id once it has started."""
        return f"{self.called} (pid {self.process.pid})" if self.process.pid else self.called


class ReportReceiver(Protocol):
    """Receiver of the workers' reports.

    It is the collector of one plan, or of several plans that are trained in turns (train_in_turns.py).

    Attributes:
        done: last report of each worker, by rank.
    """

    done: dict[int, Mapping[str, Any]]

    @property
    def halted(self) -> bool:
        """True if all workers have to stop at the same period."""

    def take(self, rank: int, event: Mapping[str, Any]) -> None:
        """Process one report of one worker."""

    def stopped_at_once(self, folder: str | None) -> str:
        """Return the message for a run that ends without waiting for its workers."""


@dataclass
class Watch:
    """Watches workers until all are done or one has failed.

    Attributes:
        collector: receives the workers' reports.
        listener: receives notes.
        failures: failures so far.
        interrupts: number of Ctrl-C and SIGTERM so far.
        held: True after the workers were asked to stop at the same period.
        asked: True after the user asked for that.
    """

    workers: list[LocalWorker]
    collector: ReportReceiver
    options: Options
    listener: Listener
    failures: list[Failure] = field(default_factory=list)
    interrupts: int = 0
    held: bool = False
    asked: bool = False

    def __enter__(self) -> "Watch":
        self._selector = selectors.DefaultSelector()
        for worker in self.workers:
            self._selector.register(worker.reports, selectors.EVENT_READ, worker)
        self._looked_s = time.monotonic()
        self._moves, self._still_s = -1, 0.0
        self._handlers: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._interrupted)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._selector.close()

    def run(self) -> None:
        """Watch until all workers have ended without error.

        Raises:
            WorkerLost: a worker died, failed or made no progress.
            KeyboardInterrupt: interrupted twice, or without a folder for checkpoints.
            HocketError: the error of a worker.
        """
        while any(worker.open or worker.process.poll() is None for worker in self.workers):
            for key, _ in self._selector.select(_LOOK_S):
                self._read(key.data)
            self._reap()
            self._listen_to_hearts()
            self._obey()
            self._judge()
        if self.failures:  # all workers have ended before the cause of a lost connection was known
            raise first_cause(self.failures).error
        if len(self.collector.done) < len(self.workers):
            raise InternalError("a worker ended without a result and without an error")

    # -- what workers say

    def _read(self, worker: LocalWorker) -> bool:
        """Process a worker's reports so far; return True if there may be more."""
        try:
            block = os.read(worker.reports, _READ_BYTES)
        except BlockingIOError:
            return False
        if not block:
            self._close(worker)
        *lines, worker.rest = (worker.rest + block).split(b"\n")
        if len(worker.rest) > _MAX_LINE_BYTES:
            raise InternalError(
                f"{worker.name} sent an event of more than {_MAX_LINE_BYTES} bytes to its parent process"
            )
        for line in lines:
            event = parse_json(line, worker.name)
            if event["event"] == "error":
                worker.failed = True
                self.failures.append(understand(worker.rank, event, worker.called))
            else:
                worker.done = worker.done or event["event"] == "done"
                if event.get("halt"):
                    self._hold()
                self.collector.take(worker.rank, event)
        return bool(block)

    def _close(self, worker: LocalWorker) -> None:
        if worker.open:
            self._selector.unregister(worker.reports)
            worker.open = False

    def _reap(self) -> None:
        """Find workers that have ended, with or without a report."""
        for worker in self.workers:
            code = worker.process.poll()
            if code is None:
                continue
            # Read its last reports. The pipe may never end, because a child process of the worker may keep it open.
            while worker.open and self._read(worker):
                pass
            self._close(worker)
            if not worker.failed and not (code == 0 and worker.done):
                worker.failed = True
                self.failures.append(self._death_of(worker, code))

    def _death_of(self, worker: LocalWorker, code: int) -> Failure:
        now_s = time.monotonic()
        if code >= 0:
            text = f"{worker.name} ended with code {code} {worker.page.place}"
            return Failure(worker.rank, now_s, False, self._lost(text, _last_words(worker.log)))
        text = f"{worker.name} was killed by signal {-code} {worker.page.place}"
        more = "If no user did that, the machine may have run out of memory." if -code == signal.SIGKILL else ""
        # A worker killed by a signal died before the others noticed, except for SIGABRT, which may follow a lost peer.
        at_s = now_s if -code == signal.SIGABRT else now_s - _GRACE_S
        return Failure(worker.rank, at_s, False, self._lost(text, more))

    def _listen_to_hearts(self) -> None:
        """Find workers that are alive but without heartbeat, or make no progress.

        They are stopped, frozen, or deadlocked.
        """
        now_s = time.monotonic()
        # Time during which the watcher itself was stopped does not count.
        since_s, self._looked_s = min(now_s - self._looked_s, 5 * _LOOK_S), now_s
        for worker in self.workers:
            beats = worker.page.beats
            # A worker that has not started does not count as silent: its fork server loads torch.
            alive = beats != worker.beats or worker.process.pid is None or worker.process.poll() is not None
            worker.beats, worker.silent_s = beats, 0.0 if alive else worker.silent_s + since_s
        silent = max(self.workers, key=lambda worker: worker.silent_s)
        if silent.silent_s > self.options.silence_s:
            text = f"{silent.name} has not answered for {silent.silent_s:.0f} s{_how(silent)} {silent.page.place}"
            self.failures.append(Failure(silent.rank, now_s, False, self._lost(text)))
        moves = sum(worker.page.moves for worker in self.workers)
        training = all(worker.page.state in (WorkerState.RUNNING, WorkerState.WAITING) for worker in self.workers)
        still = moves == self._moves and training
        self._moves, self._still_s = moves, self._still_s + since_s if still else 0.0
        if self._still_s > self.options.stall_s:
            stuck = min(
                self.workers, key=lambda worker: worker.page.state
            )  # prefer a worker that runs to one that waits
            text = f"no worker has moved for {self._still_s:.0f} s; {stuck.name} is {stuck.page.place}"
            self.failures.append(Failure(stuck.rank, now_s, False, self._lost(text)))

    # -- what the watcher does

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        self.interrupts += 1

    def _obey(self) -> None:
        """Handle interrupts of the user, and failures of callbacks."""
        if self.collector.halted:
            self._hold()
        if self.interrupts == 0:
            return
        if self.options.checkpoint is None or self.interrupts > 1:
            raise KeyboardInterrupt(self.collector.stopped_at_once(self.options.checkpoint))
        if not self.asked:
            self.asked = True
            self._hold()
            self.listener.note("stopping: the workers finish the period and save; interrupt again to stop at once")

    def _hold(self) -> None:
        """Ask all workers to stop at the same period."""
        if not self.held:
            self.held = True
            hold_all([worker.page for worker in self.workers])

    def _judge(self) -> None:
        """Raise the error of the first failure, once its cause is known.

        If only lost connections are known, it waits some seconds for another failure.
        """
        if not self.failures:
            return
        first = first_cause(self.failures)
        if first.peer and time.monotonic() < first.at_s + _GRACE_S:
            return
        raise first.error

    def _lost(self, text: str, more: str = "") -> WorkerLost:
        return WorkerLost(
            f"{text}; the other workers were stopped; {advice(self.options)}" + (f". {more}" if more else "")
        )


def _how(worker: LocalWorker) -> str:
    """Return why a process does not answer, by its state in Linux; empty if unknown."""
    with suppress(OSError, IndexError):
        status = Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return {"T": " (it is stopped)", "D": " (it waits for a device)"}.get(status, "")
    return ""


def _last_words(log: Path) -> str:
    with suppress(OSError):
        lines = log.read_bytes()[-4096:].decode(errors="replace").strip().splitlines()
        return "Its last output: " + " | ".join(lines[-5:]) if lines else ""
    return ""
