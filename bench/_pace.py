"""Pace: how fast the machine is just now, by the job's own microbatches on all of its cores at once.

Machines that others share are now faster and now slower by a fifth. What is predicted from a profile of one minute can be laid
beside what happens in another one only when both are known.
"""

import multiprocessing
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from hocket.profile.companions import usable_cores

SIZE, SECONDS, WARM_UP = 4, 1.0, 5


class Pace:
    """Processes, one a core, that train when they are asked to and wait otherwise."""

    def __init__(self, ends: list[Connection]) -> None:
        self._ends = ends

    def seconds(self) -> float:
        """What a microbatch takes now, on average over the cores."""
        for end in self._ends:
            end.send(SECONDS)
        return statistics.fmean(end.recv() for end in self._ends)


@contextmanager
def pace(job: Path) -> Iterator[Pace]:
    """Start them, and end them."""
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(usable_cores())]
    started = [context.Process(target=_train, args=(str(job), theirs), daemon=True) for _, theirs in pairs]
    for process in started:
        process.start()
    try:
        yield Pace([ours for ours, _ in pairs])
    finally:
        for process in started:
            process.kill()
            process.join()


def _train(job: str, orders: Connection) -> None:
    """One process: train for as many seconds as come in, and answer with those of a microbatch."""
    import torch

    from hocket.profile.capture import capture
    from hocket.profile.job import load_job
    from hocket.profile.rehearsal import Rehearsal

    torch.set_num_threads(1)
    worker = Rehearsal(capture(load_job(job)).for_size(SIZE), SIZE, torch.device("cpu"))
    for _ in range(WARM_UP):
        worker.once(time.perf_counter)
    while True:
        end_s = time.perf_counter() + orders.recv()
        found = []
        while time.perf_counter() < end_s or not found:
            once = worker.once(time.perf_counter)
            found.append(once.forward + once.backward)
        orders.send(statistics.fmean(found))
