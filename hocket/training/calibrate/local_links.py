"""Measure this machine as a cluster: start workers, measure and fit links.

`measure_local` starts the workers, and `main` is one worker.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path

from hocket.errors import InputError, WorkerLost
from hocket.hardware.catalog import device_type
from hocket.hardware.cluster import HALF, Cluster, Level, Link
from hocket.hardware.links import (
    MEMBERS,
    LinkSample,
    collective_cores,
    fit_samples,
    ring_all_reduce_s,
    transfer_cores,
    with_fits,
)
from hocket.profiling.measure.background_load import usable_cores
from hocket.training.launch import fork_server
from hocket.training.launch.cpu_affinity import cores_of, stay_on
from hocket.training.launch.environment import MAX_LOCAL_WORKERS, worker_environment
from hocket.util.documents import parse_json
from hocket.util.files import read_bytes, write_atomic
from hocket.util.malloc import keep_freed_memory
from hocket.util.schema import read_as

DEVICE_TYPE = "cpu-core"
_POLL_S = 0.02
_LONGER = 3  # factor of the time limit for the next attempt
_TRIES = 3
# Microbatches and updates in which the engine's overhead is measured; the first updates do not count.
_ROUNDS, _FIRST_UPDATES, _UPDATES = 40, 20, 40


def measure_local(
    workers: int, threads: int = 1, limit_s: float = 10.0, timeout_s: float = 240.0, effort: float = 1.0
) -> Cluster:
    """Measure this machine as a cluster of `workers` processes.

    Arguments:
        threads: threads of each worker.
        limit_s: approximate time to measure messages, in seconds; the start of the workers and the engine's overhead
            take some seconds more.
        timeout_s: maximum wait for the workers, in seconds.
        effort: factor of the number of measurements of the engine's overhead.

    Returns:
        A cluster with one level, "local". It has latency and bandwidth of messages through shared memory and of gloo's
        all-reduces over the loopback network, and the engine's overhead of a transfer and of an instruction. Each
        worker may use an equal share of this machine's memory.

    Raises:
        InputError: fewer than one worker or thread; or larger messages took no longer, in all attempts.
        WorkerLost: a worker failed or did not answer in time; the message has its last output.
    """
    for name, value in (("workers", workers), ("threads", threads)):
        if value < 1:
            raise InputError(name, str(value), ">= 1")
    if workers > MAX_LOCAL_WORKERS:
        raise InputError("workers", str(workers), f"at most {MAX_LOCAL_WORKERS} on one machine")
    # A single worker sends no messages. Its level has the memory's bandwidth, which is never used.
    level = Level("local", workers, device_type(DEVICE_TYPE).memory_bandwidth_bytes_per_s)
    found = _Found()
    if workers > 1:
        found, level = _fitted(level, _Effort(threads, limit_s, timeout_s, effort), _TRIES)
    # Messages between computing workers take longer than messages between otherwise idle workers.
    size_bytes, seconds = found.message
    seen_s = seconds - size_bytes / level.bandwidth_bytes_per_s
    level = replace(level, latency_s=max(level.latency_s, seen_s), all_reduce=_seen(level, found.reduced))
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Cluster(
        "local",
        (_with_halves(level, found.halves),),
        DEVICE_TYPE,
        memory_bytes=memory_bytes / workers,
        host_memory_bytes=memory_bytes,
        # In units of the cores that one busy worker uses.
        host_cores=(found.cores or usable_cores()) / threads,
        transfer_cores=transfer_cores(found.samples) / threads,
        collective_cores=collective_cores(found.samples, threads),
        sender_copies=found.sender_copies,
        post_s=found.post_s,
        instruction_s=found.instruction_s,
    )


@dataclass(frozen=True)
class _Effort:
    """Threads, time limits and number of measurements (see `measure_local`)."""

    threads: int
    limit_s: float
    timeout_s: float
    effort: float

    @property
    def longer(self) -> "_Effort":
        """The effort of the next attempt."""
        more_s = _LONGER * self.limit_s
        return replace(self, limit_s=more_s, timeout_s=self.timeout_s + more_s)


def _fitted(level: Level, effort: _Effort, tries: int) -> tuple["_Found", Level]:
    """Measure workers and fit their link; for longer if the fit fails, `tries` times.

    Raises:
        InputError, WorkerLost: see `measure_local`.
    """
    found = _measured(level.width, effort)
    alone = level.width * effort.threads <= usable_cores()
    try:
        fits = fit_samples(found.samples if alone else _without_waiting(found.samples))
        return found, with_fits((level,), fits)[0]
    except InputError:
        if tries == 1:
            raise
    return _fitted(level, effort.longer, tries - 1)


def _without_waiting(samples: Sequence[LinkSample]) -> tuple[LinkSample, ...]:
    """Reduce samples of tensor-parallel sums to processor time, without waits."""
    return tuple(replace(s, seconds=s.seconds * s.busy_cores) if s.kind == MEMBERS else s for s in samples)


def _seen(level: Level, reduced: tuple[int, float]) -> Link | None:
    """Return a level's all-reduce link, slowed down to (bytes, seconds) in training."""
    link, (size_bytes, seconds) = level.all_reduce, reduced
    if link is None or not seconds:
        return link
    longer = max(1.0, seconds / ring_all_reduce_s(level.width, size_bytes, link))
    return Link(link.bandwidth_bytes_per_s / longer, link.latency_s * longer)


def _with_halves(level: Level, halves: tuple[int, float, float]) -> Level:
    """Add times of reduce-scatter and all-gather, as shares of an all-reduce's time."""
    size_bytes, *seconds = halves
    if level.all_reduce is None or not all(seconds):
        return level
    whole_s = ring_all_reduce_s(level.width, size_bytes, level.all_reduce)
    scatter, gather = (max(HALF, each_s / whole_s) for each_s in seconds)
    return replace(level, reduce_scatter=scatter, all_gather=gather)


@dataclass(frozen=True)
class _Found:
    """Samples of the links between workers, as the workers measured them.

    Attributes:
        samples: samples of the single level.
        message: bytes and seconds of a message in training.
        reduced: bytes and seconds of an all-reduce in training.
        halves: bytes, and seconds of a reduce-scatter and of an all-gather.
        sender_copies: True if the sender's compute lane copies a message to shared memory.
        post_s: seconds of a device's compute lane to begin a send or a receive.
        instruction_s: seconds that the engine needs for each forward, backward or step, in addition to the layers.
        cores: effective processor cores that the workers share; 0 if not measured.
    """

    samples: tuple[LinkSample, ...] = ()
    message: tuple[int, float] = (0, 0.0)
    reduced: tuple[int, float] = (0, 0.0)
    halves: tuple[int, float, float] = (0, 0.0, 0.0)
    sender_copies: bool = False
    post_s: float = 0.0
    instruction_s: float = 0.0
    cores: float = 0.0


def _measured(workers: int, effort: _Effort) -> _Found:
    """Start `workers` processes on this machine, and return what they measure.

    Raises:
        WorkerLost: a worker failed or did not answer in time.
    """
    threads, timeout_s = effort.threads, effort.timeout_s
    environment = worker_environment(threads)
    places = cores_of(workers, threads)
    shared = usable_cores() if workers * threads > usable_cores() else 0
    with tempfile.TemporaryDirectory(prefix="hocket-links-") as folder:
        logs = [Path(folder, f"{rank}.log") for rank in range(workers)]
        started: list[fork_server.ForkedProcess | subprocess.Popen[bytes]] = []
        try:
            for rank, log in enumerate(logs):
                place = ["--rank", str(rank), "--workers", str(workers), "--folder", folder]
                stay = ",".join(map(str, places[rank])) if places else ""
                limits = ["--threads", str(threads), "--limit-s", str(effort.limit_s), "--timeout-s", str(timeout_s)]
                limits += ["--effort", str(effort.effort)]
                with log.open("wb") as out:
                    told = [*place, *limits, "--cores", stay, "--shared", str(shared)]
                    started.append(
                        fork_server.start("hocket.training.calibrate.local_links", told, environment, out=out.fileno())
                    )
            _wait(started, logs, timeout_s)
        finally:
            for process in started:
                process.kill()
                process.wait()
        path = Path(folder, "samples.json")
        return read_as(_Found, parse_json(read_bytes(path), str(path)), "measured links")


def _wait(
    started: "Sequence[fork_server.ForkedProcess | subprocess.Popen[bytes]]", logs: Sequence[Path], timeout_s: float
) -> None:
    """Wait until all workers have ended without error; raise as soon as one fails."""
    end_s = time.monotonic() + timeout_s
    while True:
        codes = [process.poll() for process in started]
        failed = next((rank for rank, code in enumerate(codes) if code), None)
        if failed is not None:
            words = logs[failed].read_text(errors="replace").strip().splitlines()[-3:]
            raise WorkerLost(f"measuring links: worker {failed} ended with code {codes[failed]}: {' '.join(words)}")
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > end_s:
            silent = [rank for rank, code in enumerate(codes) if code is None]
            raise WorkerLost(f"measuring links: workers {silent} did not end within {timeout_s:g} s")
        time.sleep(_POLL_S)


def main(arguments: Sequence[str], handles: Sequence[int], parent: int) -> None:
    """Run one worker: join, measure; worker 0 also writes the samples."""
    import torch
    import torch.distributed as dist

    from hocket.runtime.engine.transport.connect import can_share
    from hocket.training.calibrate.engine_overhead import (
        all_reduce_s,
        halves_s,
        instruction_s,
        message_s,
        post_s,
        shared_cores,
    )
    from hocket.training.calibrate.link_benchmark import measure_links

    parser = argparse.ArgumentParser(description="one worker of hocket.training.calibrate.local_links.measure_local")
    for name, kind in (
        ("rank", int),
        ("workers", int),
        ("threads", int),
        ("limit-s", float),
        ("timeout-s", float),
        ("effort", float),
    ):
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--cores", default="", help="to stay on")
    parser.add_argument("--shared", type=int, help="cores of the machine, if the workers need more")
    given = parser.parse_args(arguments)
    stay_on(tuple(map(int, given.cores.split(","))) if given.cores else None)
    torch.set_num_threads(given.threads)
    keep_freed_memory()
    dist.init_process_group(
        "gloo",
        init_method=(given.folder / "meeting").as_uri(),  # a file, not a port, which another program could use
        rank=given.rank,
        world_size=given.workers,
        timeout=timedelta(seconds=given.timeout_s),
    )
    samples = measure_links((given.workers,), limit_s=given.limit_s)
    rounds, updates = round(_ROUNDS * given.effort), _FIRST_UPDATES + round(_UPDATES * given.effort)
    message, reduced, halves, begun_s = message_s(rounds), all_reduce_s(updates), halves_s(updates), post_s(rounds)
    cores = shared_cores(given.shared // given.threads) * given.threads if given.shared else 0.0
    if given.rank == 0:
        found = _Found(samples, message, reduced, halves, can_share(), begun_s, instruction_s(2 * rounds), cores)
        write_atomic(given.folder / "samples.json", json.dumps(asdict(found)))
    dist.barrier()
    dist.destroy_process_group()
