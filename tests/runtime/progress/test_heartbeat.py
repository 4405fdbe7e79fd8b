"""Tests of the heartbeat page and of the stop protocol.

By the protocol, all workers stop at the same boundary.
"""

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.program.instruction import Instruction, Kind
from hocket.runtime.progress.heartbeat import Heartbeat, WorkerState, agreed_stop, hold_all


def test_two_views_of_one_page(tmp_path: Path) -> None:
    """One process reads the fields that another process writes.

    The fields do not affect each other.
    """
    mine = Heartbeat.create(tmp_path / "page")
    theirs = Heartbeat.open(tmp_path / "page")
    mine.periods, theirs.hold = 7, 1
    mine.beats += 3
    assert (theirs.periods, mine.hold, theirs.beats, theirs.stop) == (7, 1, 3, 0)


@pytest.mark.parametrize(
    ("instruction", "words"),
    [
        (Instruction(Kind.BACKWARD, 1, 3, 0, "compute"), "at step 12 in `backward 1 #3`"),
        (Instruction(Kind.FORWARD, 0, 5, 0, "compute", again=True), "at step 12 in `forward again 0 #5`"),
        (Instruction(Kind.STEP, 2, 9, 0, "compute"), "at step 12 in `step 2 u9`"),
    ],
)
def test_place_names_step_and_instruction(instruction: Instruction, words: str) -> None:
    """A worker's place has the program's own names.

    Steps count from 1.
    """
    page = Heartbeat.private()
    assert page.place == "before its first instruction"
    page.at(instruction, 11, instruction.index, WorkerState.RUNNING)
    assert page.place == words
    assert instruction.name in words
    page.state = WorkerState.SAVING
    assert page.place == "after step 12 while it saved a checkpoint"


class Worker:
    """Worker as a small state machine.

    Every interleaving with the watcher can be played.

    Each call does one of its two memory accesses at a boundary: it writes `periods`, then it reads `hold`.
    """

    def __init__(self, page: Heartbeat) -> None:
        self.page, self.boundary, self.wrote, self.stop_at = page, 0, False, -1

    @property
    def over(self) -> bool:
        return self.boundary == self.stop_at

    def turn(self) -> None:
        if self.over:
            return
        if not self.wrote:
            self.page.periods, self.wrote = self.boundary, True
            return
        if self.stop_at < 0 and self.page.hold:
            if self.page.stop == 0:
                return  # it waits for the watcher's word
            self.stop_at = self.page.stop - 1
            assert self.boundary <= self.stop_at, "a worker went past the boundary that was agreed"
            if self.over:
                return
        self.boundary, self.wrote = self.boundary + 1, False


def watcher(pages: list[Heartbeat]) -> list[Callable[[], None]]:
    """The watcher's memory accesses, one by one."""
    seen: list[int] = []
    steps: list[Callable[[], None]] = [lambda page=page: setattr(page, "hold", 1) for page in pages]
    steps += [lambda page=page: seen.append(page.periods) for page in pages]
    steps += [lambda page=page: setattr(page, "stop", agreed_stop(seen) + 1) for page in pages]
    return steps


@given(st.integers(1, 4), st.integers(0, 40), st.randoms(use_true_random=False))
def test_all_workers_stop_at_the_same_boundary(workers: int, before: int, rng: random.Random) -> None:
    """All workers stop at the same boundary.

    For any order of all memory accesses, no worker passes the boundary, all reach it, and none waits forever.
    """
    pages = [Heartbeat.private() for _ in range(workers)]
    crew = [Worker(page) for page in pages]
    for _ in range(before):
        rng.choice(crew).turn()
    steps = watcher(pages)
    while steps:
        if rng.random() < 0.3:
            steps.pop(0)()
        else:
            rng.choice(crew).turn()
    for _ in range(10_000):
        if all(worker.over for worker in crew):
            break
        rng.choice(crew).turn()
    assert all(worker.over for worker in crew)
    assert len({worker.boundary for worker in crew}) == 1


def test_threads_that_hold_stop_together() -> None:
    """The real calls, from real threads that run periods as fast as they can."""
    pages = [Heartbeat.private() for _ in range(4)]
    ends: list[int] = []
    begun = threading.Barrier(5)

    def worker(page: Heartbeat) -> None:
        begun.wait()
        boundary, stop_at = 0, None
        while stop_at is None or boundary < stop_at:
            page.periods = boundary
            if stop_at is None and page.hold:
                stop_at = page.wait_for_stop()
                assert boundary <= stop_at
                continue
            boundary += 1
        ends.append(boundary)

    threads = [threading.Thread(target=worker, args=(page,)) for page in pages]
    for thread in threads:
        thread.start()
    begun.wait()
    stop_at = hold_all(pages)
    for thread in threads:
        thread.join()
    assert ends == [stop_at] * 4
