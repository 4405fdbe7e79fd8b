"""Launch: start one local worker for each device of a plan, watch them, and end all of them when one ends badly.

Rules of this file: no torch; the watcher never waits for a worker without also looking at the others. What it promises:

- A worker that dies, raises or falls silent ends the run: the others are killed at once, and the error says which worker it was
  and where it stood (progress.py). Of several failures the first cause is shown (failure.py).
- When the watcher dies its workers die: by the end of a pipe, and on Linux by the kernel's word (PR_SET_PDEATHSIG). The first
  worker removes the temporary folder.
- The first Ctrl-C (or SIGTERM) asks all workers to stop at the same period, to save a checkpoint and to leave; the second, or the first
  where there is no folder for checkpoints, kills them.

Workers meet through a file in a private temporary folder (no port that another program could take), get their orders as a JSON file
there, and report over a pipe, one JSON document a line. They are in a session of their own, so that a terminal's Ctrl-C reaches
the watcher alone.
"""

import json
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from hocket.documents import parse_json
from hocket.errors import InputError, InternalError, WorkerLost
from hocket.files import write_atomic
from hocket.plan.plan import Plan
from hocket.profile.companions import usable_cores
from hocket.profile.job import Job
from hocket.run import nursery
from hocket.run.collect import Collector
from hocket.run.cores import cores_of
from hocket.run.failure import Failure, first_cause, understand
from hocket.run.listener import Listener, Summary
from hocket.run.loop import Options, devices_of, predicted_now, worker_name
from hocket.run.orders import Orders, Wanted
from hocket.run.progress import Progress, State, hold_all
from hocket.units import show_count

MAX_LOCAL_WORKERS = 64
_LOOK_S = 0.1
# How long to look for the cause when all that is known is that connections broke.
_GRACE_S = 5.0
_MAX_LINE_BYTES = 2**20
_READ_BYTES = 2**16


def launch(job: Job | Path, plan: Plan, folder_of_plan: Path | None, options: Options, listener: Listener) -> Summary:
    """Run a job with local workers until it is done, stopped or broken; nothing is left running.

    Arguments:
        job: a job file, or a job whose origin is known: each worker makes it again.
        folder_of_plan: from where the plan's profile is seen, if the plan has a file.

    Raises:
        InputError, WorkerLost, KeyboardInterrupt: see `train`.
    """
    wanted, devices = Wanted.of(job), devices_of(plan)
    if len(devices) > MAX_LOCAL_WORKERS:
        hint = "Start it with torchrun on several machines."
        raise InputError("plan", f"{len(devices)} devices", f"at most {MAX_LOCAL_WORKERS} local workers", hint)
    places = None
    if options.device != "cuda":
        places = cores_of(len(devices), options.threads, options.pin, group=plan.tensor)
        if len(devices) * options.threads > usable_cores():
            each = show_count(options.threads, "thread")
            listener.note(f"{len(devices)} workers of {each} share {usable_cores()} cores")
    with tempfile.TemporaryDirectory(prefix="hocket-run-") as name:
        folder = Path(name)
        plan.save(folder / "plan.yaml")
        workers: list[_Worker] = []
        try:
            for rank in range(len(devices)):
                cores = places[rank] if places else ()
                workers.append(_start(folder, wanted, options, rank, len(devices), cores, worker_name(plan, rank)))
            # While they load torch. They keep the plan as it is written: its digest goes into checkpoints.
            watched = replace(plan, predicted=predicted_now(plan, folder_of_plan, listener))
            with _Watch(workers, watched, options, listener) as watch:
                return watch.run(devices)
        finally:
            _end(workers)


@dataclass
class _Worker:
    """One worker as the watcher sees it. `silent_s`: looked for so long without seeing a heartbeat."""

    rank: int
    called: str
    process: "nursery.Child | subprocess.Popen[bytes]"
    page: Progress
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
        """For people."""
        return f"{self.called} (pid {self.process.pid})" if self.process.pid else self.called


def _start(
    folder: Path, job: Wanted, options: Options, rank: int, workers: int, cores: tuple[int, ...], called: str
) -> _Worker:
    page = Progress.create(folder / f"progress-{rank}")
    log = folder / f"worker-{rank}.log"
    reports, report_to = os.pipe()
    control_from, control = os.pipe()
    try:
        orders = Orders(
            job=job,
            folder=str(folder),
            rank=rank,
            workers=workers,
            options=options,
            cores=cores,
        )
        path = folder / f"orders-{rank}.json"
        write_atomic(path, json.dumps(asdict(orders)))
        environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
        if loopback := next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), ""):
            # Without it gloo looks up this machine's own name, which need not resolve to anything.
            environment.setdefault("GLOO_SOCKET_IFNAME", loopback)
        with log.open("wb") as out:
            # What the first worker prints is shown (on standard error: standard output is for results).
            shown = 2 if rank == 0 else out.fileno()
            handles = (report_to, control_from)
            process = nursery.start(
                "hocket.run.worker_main", [str(path)], environment, out=shown, handles=handles, name=f"hocket-{rank}"
            )
    except BaseException:
        for handle in (reports, control):
            os.close(handle)
        raise
    finally:
        os.close(report_to)
        os.close(control_from)
    os.set_blocking(reports, False)
    return _Worker(rank, called, process, page, reports, control, log)


def _end(workers: Sequence[_Worker]) -> None:
    """Kill what still runs and close what is open. Killing is safe: all files are written aside and renamed."""
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.kill()
    for worker in workers:
        worker.process.wait()
        os.close(worker.reports)
        os.close(worker.control)


@dataclass
class _Watch:
    """Watches workers until all are done or one has failed."""

    workers: list[_Worker]
    plan: Plan
    options: Options
    listener: Listener
    failures: list[Failure] = field(default_factory=list)
    interrupts: int = 0
    held: bool = False

    def __enter__(self) -> "_Watch":
        self._selector = selectors.DefaultSelector()
        for worker in self.workers:
            self._selector.register(worker.reports, selectors.EVENT_READ, worker)
        self._collector = Collector(self.plan, self.listener)
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

    def run(self, devices: tuple[int, ...]) -> Summary:
        """Until the end."""
        while any(worker.open or worker.process.poll() is None for worker in self.workers):
            for key, _ in self._selector.select(_LOOK_S):
                self._read(key.data)
            self._reap()
            self._listen_to_hearts()
            self._obey()
            self._judge()
        if len(self._collector.done) < len(self.workers):
            raise InternalError("a worker ended without a result and without an error")
        summary = self._collector.summary(devices)
        if summary.stopped:
            self.listener.note(f"stopped after step {summary.steps}, saved in {summary.checkpoint}; --resume goes on")
        self.listener.finished(summary)
        return summary

    # -- what workers say

    def _read(self, worker: _Worker) -> bool:
        """Take what a worker has said since; returns whether there may be more at once."""
        try:
            block = os.read(worker.reports, _READ_BYTES)
        except BlockingIOError:
            return False
        if not block:
            self._close(worker)
        *lines, worker.rest = (worker.rest + block).split(b"\n")
        if len(worker.rest) > _MAX_LINE_BYTES:
            raise InternalError(f"{worker.name} reports a line of more than {_MAX_LINE_BYTES} bytes")
        for line in lines:
            event = parse_json(line, worker.name)
            if event["event"] == "error":
                worker.failed = True
                self.failures.append(understand(worker.rank, event, worker.called))
            else:
                worker.done = worker.done or event["event"] == "done"
                self._collector.take(worker.rank, event)
        return bool(block)

    def _close(self, worker: _Worker) -> None:
        if worker.open:
            self._selector.unregister(worker.reports)
            worker.open = False

    def _reap(self) -> None:
        """Notice workers that ended, with or without a word."""
        for worker in self.workers:
            code = worker.process.poll()
            if code is None:
                continue
            # Its last words are in the pipe. The pipe's own end may never come: a process that it started may hold it open.
            while worker.open and self._read(worker):
                pass
            self._close(worker)
            if not worker.failed and not (code == 0 and worker.done):
                worker.failed = True
                self.failures.append(self._death_of(worker, code))

    def _death_of(self, worker: _Worker, code: int) -> Failure:
        now_s = time.monotonic()
        if code >= 0:
            text = f"{worker.name} ended with code {code} {worker.page.place}"
            return Failure(worker.rank, now_s, False, self._lost(text, _last_words(worker.log)))
        text = f"{worker.name} was killed by signal {-code} {worker.page.place}"
        more = "If nobody did that, the machine may have run out of memory." if -code == signal.SIGKILL else ""
        # Whoever dies of a signal dies before the others notice, but for those that abort over a lost peer.
        at_s = now_s if -code == signal.SIGABRT else now_s - _GRACE_S
        return Failure(worker.rank, at_s, False, self._lost(text, more))

    def _listen_to_hearts(self) -> None:
        """Notice workers that are there but do nothing: stopped, frozen, or waiting for each other."""
        now_s = time.monotonic()
        # Time in which the watcher itself was stopped does not count.
        since_s, self._looked_s = min(now_s - self._looked_s, 5 * _LOOK_S), now_s
        for worker in self.workers:
            beats = worker.page.beats
            # One that has not begun is silent, too: its nursery loads torch.
            alive = beats != worker.beats or worker.process.pid is None or worker.process.poll() is not None
            worker.beats, worker.silent_s = beats, 0.0 if alive else worker.silent_s + since_s
        silent = max(self.workers, key=lambda worker: worker.silent_s)
        if silent.silent_s > self.options.silence_s:
            text = f"{silent.name} has not answered for {silent.silent_s:.0f} s{_how(silent)} {silent.page.place}"
            self.failures.append(Failure(silent.rank, now_s, False, self._lost(text)))
        moves = sum(worker.page.moves for worker in self.workers)
        training = all(worker.page.state in (State.RUNNING, State.WAITING) for worker in self.workers)
        still = moves == self._moves and training
        self._moves, self._still_s = moves, self._still_s + since_s if still else 0.0
        if self._still_s > self.options.stall_s:
            stuck = min(self.workers, key=lambda worker: worker.page.state)  # one that runs rather than waits
            text = f"no worker has moved for {self._still_s:.0f} s; {stuck.name} stands {stuck.page.place}"
            self.failures.append(Failure(stuck.rank, now_s, False, self._lost(text)))

    # -- what the watcher does

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        self.interrupts += 1

    def _obey(self) -> None:
        """Do what the person asked for."""
        if self.interrupts == 0:
            return
        if self.options.checkpoint is None or self.interrupts > 1:
            raise KeyboardInterrupt(self._collector.stopped_at_once(self.options.checkpoint))
        if not self.held:
            self.held = True
            hold_all([worker.page for worker in self.workers])
            self.listener.note("stopping: the workers finish the period and save; once more to stop at once")

    def _judge(self) -> None:
        """Raise the first cause of a failure, once it can be known."""
        if not self.failures:
            return
        first = first_cause(self.failures)
        if first.peer and time.monotonic() < first.at_s + _GRACE_S:
            return
        raise first.error

    def _lost(self, text: str, more: str = "") -> WorkerLost:
        return WorkerLost(f"{text}; the others were stopped; {self._advice()}" + (f". {more}" if more else ""))

    def _advice(self) -> str:
        folder = self.options.checkpoint
        if self.options.drawing is not None:
            return "start again"
        if folder is None:
            return "start again, with --checkpoint DIR to be able to resume"
        return "resume with --resume" if any(Path(folder).glob("step-*")) else "no checkpoint was made yet: start again"


def _how(worker: _Worker) -> str:
    """Why a process does not answer, where the kernel says so."""
    with suppress(OSError, IndexError):
        status = Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return {"T": " (it is stopped)", "D": " (it waits for a device)"}.get(status, "")
    return ""


def _last_words(log: Path) -> str:
    with suppress(OSError):
        lines = log.read_bytes()[-4096:].decode(errors="replace").strip().splitlines()
        return "Its last words: " + " | ".join(lines[-5:]) if lines else ""
    return ""
