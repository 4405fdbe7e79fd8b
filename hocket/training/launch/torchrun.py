"""Run as one of torchrun's workers, on one machine or several.

There is no watcher process. A thread of every worker watches instead (`_Together`). It uses the rendezvous store, with
JSON values, for everything that the watcher of local.py does with progress pages and pipes:

    beat/RANK       growing number: this worker is alive. Worker RANK + 1 checks it
    failed/RANK     this worker's error report
    gone            message on a worker that does not answer
    hold            a worker was interrupted, or has a finding that ends the run
    seen/RANK       number of periods that this worker had begun when it read `hold`
    stop            number of periods after which all workers stop, computed by the first worker
    news/RANK/N     reports for the first worker, which shows the run
    over            the first worker has all last reports
    bye/RANK        this worker no longer needs the store

The threads never wait for training, so stopping cannot deadlock (heartbeat.py).
"""

import atexit
import json
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from hocket.errors import HocketError, NotFinite, WorkerLost
from hocket.profiling.job.job import Job
from hocket.profiling.job.job_file import load_job
from hocket.runtime.progress.heartbeat import Heartbeat, WorkerState, agreed_stop
from hocket.training.calibrate.run_feedback import predicted_now
from hocket.training.callbacks.runner import CallbackRunner
from hocket.training.launch.failures import Failure, advice, describe, first_cause, understand
from hocket.training.launch.rendezvous import meet
from hocket.training.launch.torchrun_environment import number_in
from hocket.training.run_plan import RunPlan
from hocket.training.worker.monitor.collector import Collector, plain
from hocket.training.worker.monitor.listener import Listener, RunSummary
from hocket.training.worker.options import INTERRUPTED, Options
from hocket.training.worker.prepared import RankInfo
from hocket.training.worker.ranks import worker_names
from hocket.training.worker.telemetry import Telemetry
from hocket.training.worker.worker import work
from hocket.util.documents import parse_json
from hocket.util.malloc import keep_freed_memory

_BEAT_S = 0.25
_POLL_S = 0.02
# Wait for the error reports of other workers, before a lost connection is reported as the cause.
_GRACE_S = 5.0


def join(
    job: Job | str | Path, run_plan: RunPlan, options: Options, listener: Listener, callbacks: CallbackRunner
) -> RunSummary:
    """Train as one of torchrun's workers.

    The first worker shows the run and returns the summary of all workers. The other workers return their own summary.

    Arguments:
        listener: receives the events of the run.
        callbacks: calls the callbacks of the run, in the first worker.

    Raises:
        InputError: job, plan, workers or checkpoints do not fit.
        WorkerLost: another worker died or did not answer; the message names it.
    """
    rank, workers = number_in("RANK"), number_in("WORLD_SIZE")
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    plan = run_plan.checked
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    store = meet(rank, workers, listener.note)
    progress = Heartbeat.private()
    collector = None
    if rank == 0:
        collector = Collector(replace(plan, predicted=predicted_now(run_plan, listener)), listener, callbacks)
    names = worker_names(plan.worker_devices, plan.tensor)
    together = _Together(PrefixStore("watch", store.clone()), rank, names, progress, options, collector)  # type: ignore[attr-defined]
    with together.watching():
        try:
            job = job if isinstance(job, Job) else load_job(job)
            callbacks.use(job)
            rank_info = RankInfo(rank, workers, local_rank, store)
            work(job, plan, options, rank_info, Telemetry(progress, together.tell))
            progress.state = WorkerState.FINISHED
            together.finish()
        except BaseException as error:
            cause = together.explain(error)
            atexit.register(_end_process, _code_of(cause))
            raise cause from error
    if collector is None:
        own = Collector(plan, listener)
        own.take(rank, together.done)
        return own.summary(plan.worker_devices)
    summary = collector.summary(plan.worker_devices)
    if summary.stopped:
        listener.note(summary.stop)
    callbacks.finish(summary.stop if summary.stopped else None)
    listener.finished(summary)
    return summary


def _code_of(error: BaseException) -> int:
    """Return the exit code of a worker that ends with this error."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return error.exit_code if isinstance(error, HocketError) else WorkerLost.exit_code


def _end_process(code: int) -> None:
    """End the process of a failed run at once.

    If the interpreter ended the process, torch would abort it because of threads inside a transfer.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@dataclass
class _Together:
    """Watching thread of one worker; see the module's docstring.

    Attributes:
        names: names of all workers in messages, by rank.
        collector: receives the reports of all workers; None except on the first worker.
        done: last report of this worker.
    """

    store: Store
    rank: int
    names: list[str]
    progress: Heartbeat
    options: Options
    collector: Collector | None
    done: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.workers = len(self.names)
        self._news: deque[dict[str, Any]] = deque()
        self._sent = 0
        self._taken = dict.fromkeys(range(self.workers), 0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._beats = 0
        self._left = (self.rank - 1) % self.workers
        self._left_beats, self._left_s = "", time.monotonic()
        self._held = False
        self._signals = 0
        self._halts = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch, and handle Ctrl-C and SIGTERM, inside this context."""
        waker, woken = socket.socketpair()
        waker.setblocking(False)
        woken.setblocking(False)
        handlers, before, main = {}, -1, threading.current_thread() is threading.main_thread()
        if main:
            # Notify the thread at once, even while the main thread is inside a transfer and runs no Python.
            before = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
            handlers = {n: signal.signal(n, self._again) for n in (signal.SIGINT, signal.SIGTERM)}
        self._woken = woken
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join(timeout=_GRACE_S)
            if main:
                signal.set_wakeup_fd(before)
                for number, handler in handlers.items():
                    signal.signal(number, handler)
            waker.close()
            woken.close()

    def tell(self, event: dict[str, Any]) -> None:
        """Add a report of this worker; the thread sends it."""
        if event["event"] == "done":
            self.done = event
        self._halts = self._halts or bool(event.get("halt"))
        self._news.append(event)

    def finish(self) -> None:
        """Wait until the first worker has all last reports and no worker needs the store.

        The first worker may host the store, so it must end last.

        Raises:
            WorkerLost: the other workers did not report their end in time.
        """
        if self.collector is None:
            self._until("over")
            self.store.set(f"bye/{self.rank}", "1")
            return
        end_s = time.monotonic() + self.options.silence_s
        while len(self.collector.done) < self.workers and time.monotonic() < end_s:
            time.sleep(_POLL_S)
        self.store.set("over", "1")
        for rank in range(1, self.workers):
            self._until(f"bye/{rank}")

    def _until(self, key: str) -> None:
        # Poll, because a blocking wait would block the store for this worker's thread.
        end_s = time.monotonic() + 2 * self.options.silence_s
        while not self.store.check([key]):
            if time.monotonic() > end_s:
                raise WorkerLost(f"{self.names[self.rank]} finished, but other workers did not report their end")
            time.sleep(_POLL_S)

    def explain(self, error: BaseException) -> BaseException:
        """Report an error of this worker; return the error to raise.

        That is this error, or its cause on another worker.
        """
        if isinstance(error, KeyboardInterrupt):
            return error
        event = describe(error, time.time(), self.progress.place, self.options.debug)
        failure = understand(self.rank, event, self.names[self.rank])
        self._try_set(f"failed/{self.rank}", json.dumps(event))
        if isinstance(error, NotFinite):
            self._wait_for_others()
        if not failure.peer:
            return error if isinstance(error, HocketError) else failure.error
        found = [failure]
        end_s = time.monotonic() + _GRACE_S
        while all(f.peer for f in found) and time.monotonic() < end_s:
            time.sleep(_BEAT_S)
            found = [failure, *self._failures()]
        cause = first_cause(found)
        return failure.error if cause.peer else WorkerLost(f"{self.names[cause.rank]} failed: {cause.error}")

    def _wait_for_others(self) -> None:
        """Wait until all workers have reported an error.

        Only the first worker waits, because the store ends with it.
        """
        if self.rank:
            return
        end_s = time.monotonic() + self.options.silence_s
        while len(self._failures()) < self.workers - 1 and time.monotonic() < end_s:
            time.sleep(_POLL_S)

    # -- the thread

    def _run(self) -> None:
        while not self._over.wait(_BEAT_S):
            try:
                self._turn()
            except Exception as error:  # the store is lost, and with it the first machine
                if not self._over.wait(_GRACE_S):
                    self._leave(f"the meeting place does not answer: {error}")

    def _turn(self) -> None:
        self._beats += 1
        self.store.set(f"beat/{self.rank}", str(self._beats))
        self._send_news()
        if self.collector is not None:
            self._take_news()
            self._halts = self._halts or self.collector.halted
        self._hold()
        self._look_left()
        if self.store.check(["gone"]):
            # The main thread may be inside a transfer that never ends. Otherwise it raises its own error within this
            # time.
            text = self.store.get("gone").decode()
            if not self._over.wait(_GRACE_S):
                self._leave(text)

    def _send_news(self) -> None:
        if not self._news:
            return
        batch = []
        while self._news:
            batch.append(self._news.popleft())
        if self.collector is not None:
            for event in batch:
                self.collector.take(self.rank, event)
            return
        self.store.set(f"news/{self.rank}/{self._sent}", json.dumps([plain(event) for event in batch], allow_nan=False))
        self._sent += 1

    def _take_news(self) -> None:
        assert self.collector is not None
        for rank in range(1, self.workers):
            key = f"news/{rank}/{self._taken[rank]}"
            if self.store.check([key]):
                for event in parse_json(self.store.get(key), f"worker {rank}"):
                    self.collector.take(rank, event)
                self.store.delete_key(key)
                self._taken[rank] += 1

    def _hold(self) -> None:
        try:
            if self._woken.recv(16) and self.options.checkpoint is not None:
                self.store.set("hold", "1")
        except BlockingIOError:
            pass
        if self._halts and not self._held:
            self.store.set("hold", "1")
        if self.progress.stop or not (self._held or self.store.check(["hold"])):
            return
        if not self._held:
            self._held = True
            self.progress.hold = 1
            self.store.set(f"seen/{self.rank}", str(self.progress.periods))
        keys = [f"seen/{rank}" for rank in range(self.workers)]
        if self.rank == 0 and self.store.check(keys):
            self.store.set("stop", str(agreed_stop([int(self.store.get(key)) for key in keys])))
        if self.store.check(["stop"]):
            self.progress.stop = int(self.store.get("stop")) + 1

    def _again(self, number: int, frame: Any) -> None:
        # Do not use `_held`: the thread may handle this same signal before the main thread runs Python again.
        self._signals += 1
        if self._signals > 1 or self.options.checkpoint is None:
            raise KeyboardInterrupt(self.collector.stopped_at_once(self.options.checkpoint) if self.collector else "")

    def _look_left(self) -> None:
        """Check the heartbeat of the neighbour RANK - 1.

        Checking only one neighbour keeps the number of requests to the store small.
        """
        if self.workers == 1:
            return
        key = f"beat/{self._left}"
        beats = self.store.get(key).decode() if self.store.check([key]) else ""
        now_s = time.monotonic()
        if beats != self._left_beats:
            self._left_beats, self._left_s = beats, now_s
        elif now_s - self._left_s > self.options.silence_s and not self.store.check([f"failed/{self._left}"]):
            text = f"{self.names[self._left]} has not answered for {now_s - self._left_s:.0f} s"
            self._try_set("gone", f"{text}; {advice(self.options)}")

    def _failures(self) -> list[Failure]:
        found = []
        try:
            for rank in range(self.workers):
                key = f"failed/{rank}"
                if rank != self.rank and self.store.check([key]):
                    found.append(understand(rank, parse_json(self.store.get(key), f"worker {rank}"), self.names[rank]))
        except RuntimeError:  # the store is lost
            return found
        return found

    def _try_set(self, key: str, text: str) -> None:
        try:
            self.store.set(key, text)
        except RuntimeError:  # the store is lost, so the error cannot be reported
            return

    def _leave(self, text: str) -> None:
        print(f"hocket: {self.names[self.rank]} {self.progress.place}: {text}", file=sys.stderr, flush=True)
        os._exit(WorkerLost.exit_code)
