"""Watching of workers without starting any: torchrun's workers over a store, and local ones over pipes."""

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from hocket.errors import HocketError, InputError, InternalError, WorkerLost
from hocket.runtime.progress.heartbeat import Heartbeat, WorkerState
from hocket.training.launch import torchrun, watcher
from hocket.training.launch.failures import describe
from hocket.training.launch.torchrun import _Together
from hocket.training.launch.watcher import LocalWorker, Watch
from hocket.training.worker.monitor.listener import Quiet
from hocket.training.worker.options import Options


class Collected:
    """A collector that notes who said what."""

    def __init__(self) -> None:
        self.done: dict[int, Mapping[str, Any]] = {}
        self.taken: list[tuple[int, str]] = []
        self.halted = False

    def take(self, rank: int, event: Mapping[str, Any]) -> None:
        """Note a report."""
        self.taken.append((rank, str(event.get("text", event["event"]))))
        if event["event"] == "done":
            self.done[rank] = event

    def stopped_at_once(self, folder: str | None) -> str:
        """What is said of a run that ends at once."""
        return f"stopped at once, saved in {folder}"


class Noted(Quiet):
    """A listener that keeps notes."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Keep a note."""
        self.notes.append(text)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock of the watchers that shows what the test says; sleeping moves it on."""
    found = SimpleNamespace(now_s=100.0)

    def sleep(seconds: float) -> None:
        found.now_s += seconds

    moving = SimpleNamespace(monotonic=lambda: found.now_s, sleep=sleep, time=time.time)
    monkeypatch.setattr(torchrun, "time", moving)
    monkeypatch.setattr(watcher, "time", moving)
    return found


@contextmanager
def together(workers: int, **options: Any) -> Iterator[list[_Together]]:
    """Workers of a run in one process, which take turns as the test says; the first has a collector."""
    store, sockets, found = HashStore(), [], []
    told = Options(9, **({"silence_s": 10.0} | options))
    for rank in range(workers):
        sockets.append(socket.socketpair())
        sockets[-1][1].setblocking(False)
        collector: Any = Collected() if rank == 0 else None
        one = _Together(store, rank, [f"worker {k}" for k in range(workers)], Heartbeat.private(), told, collector)
        one._woken = sockets[-1][1]
        found.append(one)
    try:
        yield found
    finally:
        for pair in sockets:
            for end in pair:
                end.close()


def test_reports_come_to_the_first_worker_in_order(clock: SimpleNamespace) -> None:
    """The first worker's collector takes its own reports and those of the others, each worker's in order, each once."""
    with together(3) as ranks:
        for rank, one in enumerate(ranks):
            for number in range(2):
                one.tell({"event": "note", "text": f"{rank}.{number}", "loss": float("nan")})
        for one in (*ranks[1:], ranks[0]):
            one._turn()
        ranks[2].tell({"event": "note", "text": "2.2"})
        ranks[2]._turn()
        ranks[0]._turn()
        ranks[0]._turn()
        assert ranks[0].collector is not None
        taken = ranks[0].collector.taken  # type: ignore[attr-defined]
        assert sorted(taken) == [(0, "0.0"), (0, "0.1"), (1, "1.0"), (1, "1.1"), (2, "2.0"), (2, "2.1"), (2, "2.2")]
        assert [text for rank, text in taken if rank == 2] == ["2.0", "2.1", "2.2"]


def test_all_stop_at_the_same_period(clock: SimpleNamespace) -> None:
    """If one worker halts, all hold, and stop two periods after the newest of them; others go on."""
    with together(3) as ranks:
        for one, periods in zip(ranks, (4, 7, 5), strict=True):
            one.progress.periods = periods
            one._turn()
        assert [one.progress.hold for one in ranks] == [0, 0, 0]
        ranks[1].tell({"event": "not_finite", "halt": True})
        for one in (*ranks[1:], *ranks, *ranks):
            one._turn()
        assert [one.progress.hold for one in ranks] == [1, 1, 1]
        assert [one.progress.stop for one in ranks] == [10, 10, 10]


def test_a_callback_that_fails_stops_all(clock: SimpleNamespace) -> None:
    """The first worker's collector says so."""
    with together(2) as ranks:
        ranks[0].collector.halted = True  # type: ignore[union-attr]
        for one in (*ranks, *ranks, *ranks):
            one._turn()
        assert all(one.progress.stop for one in ranks)


def test_a_neighbour_without_heartbeat_is_named_once_it_is_silent(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `silence_s` without a beat of its left neighbour a worker says so, unless that neighbour told of its error."""
    with together(3) as ranks:
        left: list[str] = []
        for one in ranks:
            monkeypatch.setattr(one, "_leave", left.append)
            monkeypatch.setattr(one._over, "wait", lambda seconds: False)
            one._turn()
            one._turn()
        for seconds in (9.0, 1.0):
            clock.now_s += seconds
            ranks[0]._turn()
            ranks[2]._turn()
            assert not ranks[0].store.check(["gone"])
        clock.now_s += 0.5
        ranks[0].store.set("failed/1", json.dumps(describe(ValueError("x"), 0.0, "step 1")))
        ranks[2]._look_left()
        assert not ranks[0].store.check(["gone"])
        ranks[0].store.delete_key("failed/1")
        ranks[2]._turn()
        assert left == ["worker 1 has not answered for 10 s; start again, with --checkpoint DIR to be able to resume"]


def test_the_first_worker_ends_last(clock: SimpleNamespace) -> None:
    """It waits for all last reports, and then for the others' farewell; each has a limit of time."""
    with together(2) as ranks:
        with pytest.raises(WorkerLost, match="worker 1 finished, but other workers did not report their end"):
            ranks[1].finish()
        assert clock.now_s == pytest.approx(100 + 2 * 10, abs=0.1)
        ranks[0].store.set("bye/1", "1")
        ranks[0].finish()
        assert clock.now_s == pytest.approx(120 + 10, abs=0.1)
        ranks[1].finish()
        assert ranks[0].store.get("over") == b"1"


def test_the_cause_on_another_worker_is_raised(clock: SimpleNamespace) -> None:
    """A lost connection is explained by the error of the worker that caused it; an own error stays what it is."""
    with together(2) as ranks:
        own = InputError("here", "this", "that")
        assert ranks[0].explain(own) is own
        caused = ranks[1].explain(RuntimeError("Connection closed by peer"))
        assert str(caused) == f"worker 0 failed: {own}"
        assert isinstance(ranks[1].explain(ValueError("odd")), WorkerLost)
    with together(2) as ranks:
        alone = ranks[1].explain(RuntimeError("Connection closed by peer"))
        assert "Connection closed by peer" in str(alone)
        assert clock.now_s >= 100 + 5


@contextmanager
def watch(tmp_path: Path, count: int, **options: Any) -> Iterator[tuple[Watch, list[int]]]:
    """A watcher of stand-ins for processes, and the ends of pipes into which these report."""
    workers, ends = [], []
    for rank in range(count):
        reports, end = os.pipe()
        os.set_blocking(reports, False)
        process: Any = SimpleNamespace(pid=2**30 + rank, code=None, poll=lambda: None)
        process.poll = lambda own=process: own.code
        log = tmp_path / f"{rank}.log"
        log.write_text("".join(f"line {k}\n" for k in range(7)))
        workers.append(LocalWorker(rank, f"worker {rank}", process, Heartbeat.private(), reports, -1, log))
        ends.append(end)
    told = Options(9, **({"silence_s": 10.0, "stall_s": 60.0} | options))
    with Watch(workers, Collected(), told, Noted()) as found:
        yield found, ends
    for descriptor in (*ends, *(worker.reports for worker in workers)):
        os.close(descriptor)


def say(end: int, **event: Any) -> None:
    """Write a report into a pipe."""
    os.write(end, json.dumps(event).encode() + b"\n")


def test_reports_are_read_in_pieces(tmp_path: Path, clock: SimpleNamespace) -> None:
    """Several reports at once, and one in two pieces, which counts when it is whole; a `halt` stops all workers."""
    with watch(tmp_path, 2) as (found, ends):
        say(ends[0], event="note", text="a")
        say(ends[0], event="note", text="b")
        os.write(ends[0], b'{"event": "note", ')
        assert found._read(found.workers[0])
        assert not found._read(found.workers[0])
        os.write(ends[0], b'"text": "c"}\n')
        assert found._read(found.workers[0])
        assert found.collector.taken == [(0, "a"), (0, "b"), (0, "c")]  # type: ignore[attr-defined]
        assert [worker.page.hold for worker in found.workers] == [0, 0]
        say(ends[1], event="not_finite", halt=True)
        found._read(found.workers[1])
        assert [worker.page.hold for worker in found.workers] == [1, 1]
        for _ in range(32):
            os.write(ends[0], b"x" * 2**15)
            found._read(found.workers[0])
        os.write(ends[0], b"x")
        with pytest.raises(InternalError, match="sent an event of more than 1048576 bytes"):
            found._read(found.workers[0])


@pytest.mark.parametrize(
    ("code", "done", "told"),
    [
        (0, True, ""),
        (0, False, "ended with code 0"),
        (3, True, r"ended with code 3 .* Its last output: line 2 \| line 3 \| line 4 \| line 5 \| line 6"),
        (-9, True, "was killed by signal 9 .*may have run out of memory"),
        (-15, True, "was killed by signal 15"),
    ],
)
def test_a_worker_that_ended(tmp_path: Path, clock: SimpleNamespace, code: int, done: bool, told: str) -> None:
    """Only one that has reported its end and ends with code 0 is done; all others are told with their last words."""
    with watch(tmp_path, 2) as (found, ends):
        if done:
            say(ends[1], event="done")
        found.workers[1].process.code = code  # type: ignore[union-attr]
        found._reap()
        assert not found.workers[1].open
        assert found.workers[0].open
        if told:
            with pytest.raises(WorkerLost, match=f"worker 1 .*{told}"):
                found._judge()
        else:
            found._judge()
            assert set(found.collector.done) == {1}


def test_killed_workers_died_before_those_that_noticed(tmp_path: Path, clock: SimpleNamespace) -> None:
    """A signal is the cause; a lost connection is believed only if no cause comes within some seconds."""
    with watch(tmp_path, 3) as (found, ends):
        lost = describe(RuntimeError("Connection reset by peer"), 100.0, "step 1")
        say(ends[0], **lost)
        found._read(found.workers[0])
        found._judge()
        clock.now_s += 1
        found.workers[1].process.code = 1  # type: ignore[union-attr]
        found.workers[2].process.code = -11  # type: ignore[union-attr]
        found._reap()
        with pytest.raises(WorkerLost, match=r"worker 2 .*was killed by signal 11"):
            found._judge()
        found.failures = found.failures[:1]
        clock.now_s = 104.9
        found._judge()
        clock.now_s = 105.1
        with pytest.raises(HocketError, match="Connection reset by peer"):
            found._judge()


def test_workers_that_all_ended_by_a_lost_connection(tmp_path: Path, clock: SimpleNamespace) -> None:
    """The lost connection is raised, although its cause might still have come: nobody is left who could say it."""
    with watch(tmp_path, 2) as (found, ends):
        for rank, worker in enumerate(found.workers):
            say(ends[rank], **describe(RuntimeError("Connection reset by peer"), 100.0, "step 1"))
            worker.process.code = 1  # type: ignore[union-attr]
        with pytest.raises(WorkerLost, match="Connection reset by peer"):
            found.run()


def test_silent_and_stuck_workers(tmp_path: Path, clock: SimpleNamespace) -> None:
    """No heartbeat for `silence_s` is one failure, heartbeats without any move for `stall_s` another."""

    def listen(found: Watch, times: int, beating: tuple[int, ...], moving: bool = False) -> None:
        for _ in range(times):
            clock.now_s += 0.25
            for rank in beating:
                found.workers[rank].page.beats += 1
            if moving:
                found.workers[0].page.moves += 1
            found._listen_to_hearts()

    with watch(tmp_path, 2) as (found, _):
        found.workers[0].process.pid = None  # type: ignore[union-attr]
        listen(found, 41, (1,))
        assert found.failures == []  # one that has not started is not silent
        found.workers[0].process.pid = 2**30
        listen(found, 40, (1,))
        assert found.failures == []
        listen(found, 1, (1,))
        assert "worker 0 (pid 1073741824) has not answered for 10 s" in str(found.failures[0].error)
    with watch(tmp_path, 2) as (found, _):
        clock.now_s += 1000  # the watcher itself was stopped
        listen(found, 1, (0, 1))
        for worker in found.workers:
            worker.page.state = WorkerState.RUNNING
        found.workers[1].page.state = WorkerState.WAITING
        listen(found, 300, (0, 1), moving=True)
        listen(found, 239, (0, 1))
        assert found.failures == []
        listen(found, 2, (0, 1))
        assert "no worker has moved for 60 s; worker 0" in str(found.failures[0].error)


def test_interrupts(tmp_path: Path, clock: SimpleNamespace) -> None:
    """The first lets the workers save, and is told once; the second, or the first without a folder, ends the run."""
    with watch(tmp_path, 1, checkpoint="runs") as (found, _):
        found._obey()
        assert not found.held
        found.interrupts = 1
        found._obey()
        found._obey()
        assert found.listener.notes == [  # type: ignore[attr-defined]
            "stopping: the workers finish the period and save; interrupt again to stop at once"
        ]
        assert found.workers[0].page.hold == 1
        found.interrupts = 2
        with pytest.raises(KeyboardInterrupt, match="stopped at once, saved in runs"):
            found._obey()
    with watch(tmp_path, 1) as (found, _):
        found.interrupts = 1
        with pytest.raises(KeyboardInterrupt, match="saved in None"):
            found._obey()
    with watch(tmp_path, 1) as (found, _):
        found.collector.halted = True  # type: ignore[misc]
        found._obey()
        assert found.held


def test_the_whole_watch(tmp_path: Path, clock: SimpleNamespace) -> None:
    """It ends when all processes have ended, and not without the last report of each."""
    for last in (True, False):
        with watch(tmp_path, 2) as (found, ends):
            for rank, worker in enumerate(found.workers):
                worker.process.code = 0  # type: ignore[union-attr]
                say(ends[rank], event="done")
            if last:
                found.run()
            else:
                found.collector.take = lambda rank, event: None  # type: ignore[method-assign]
                with pytest.raises(InternalError, match="without a result and without an error"):
                    found.run()
