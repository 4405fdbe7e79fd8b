"""Link benchmark: real workers measure the links between them.

The tested files are training/calibrate/link_benchmark.py and training/calibrate/local_links.py.
"""

import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from hocket.errors import InputError, WorkerLost
from hocket.hardware.cluster import Cluster, Level, Link
from hocket.hardware.links import ALL_REDUCE, MEMBERS, POINT_TO_POINT, LinkSample, ring_all_reduce_s
from hocket.profiling.measure.background_load import usable_cores
from hocket.training.calibrate import local_links
from hocket.training.calibrate.link_benchmark import _Kind, _nothing, _series, measure_links
from hocket.training.calibrate.local_links import (
    _Effort,
    _Found,
    _seen,
    _with_halves,
    _without_waiting,
    measure_local,
)
from tests.runtime.helpers.starting import finish, start

pytestmark = pytest.mark.workers


def main(arguments: Sequence[str], handles: Sequence[int], parent: int) -> None:
    """One of some real workers: what it returns from `measure_links`, as a file."""
    rank, workers, widths, folder = int(arguments[0]), int(arguments[1]), json.loads(arguments[2]), Path(arguments[3])
    dist.init_process_group("gloo", init_method=(folder / "meeting").as_uri(), rank=rank, world_size=workers)
    found: object
    try:
        samples = measure_links(widths, sizes_bytes=(1024, 65536, 4), repeats=3, limit_s=float(arguments[4]))
        found = [asdict(sample) for sample in samples]
    except InputError as error:
        found = str(error)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()  # others may still be about to connect
    dist.destroy_process_group()


def run_workers(folder: Path, workers: int, widths: list[int], limit_s: float = 10.0) -> list[object]:
    """Return the results of `measure_links` on real workers."""
    told = (json.dumps(widths), folder, limit_s)
    finish(start("tests.training.calibrate.test_link_benchmark", *((rank, workers, *told) for rank in range(workers))))
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(workers)]


def test_every_level_is_measured_by_its_own_members(tmp_path: Path) -> None:
    """Each level is measured by its own members.

    Four workers form levels of widths 1, 2 and 2. A level of width 1 has no measurements, and each other level has
    three kinds. Every worker has the same list.
    """
    answers = run_workers(tmp_path, 4, [1, 2, 2])
    assert answers.count(answers[0]) == 4
    samples = [LinkSample(**sample) for sample in answers[0]]
    assert [(s.level, s.kind, s.members, s.size_bytes) for s in samples] == [
        (level, kind, 2, size)
        for level in (1, 2)
        for kind in (POINT_TO_POINT, ALL_REDUCE, MEMBERS)
        for size in (4, 1024, 65536)
    ]
    assert all(0 < s.seconds < 10 and 0 < s.busy_cores < 64 for s in samples)


def test_without_time_two_sizes_are_left(tmp_path: Path) -> None:
    """With a time limit of 0, both workers stop after the same two sizes.

    A fit needs two sizes. No worker hangs.
    """
    answers = run_workers(tmp_path, 2, [2], limit_s=0.0)
    assert answers[0] == answers[1]
    assert [sample["size_bytes"] for sample in answers[0]] == [4, 1024] * 3


def test_widths_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """Widths that do not fit the number of workers are refused on every worker.

    The error comes before any transfer.
    """
    answers = run_workers(tmp_path, 2, [3])
    assert answers == ["widths: found (3,) for 3 workers; expected a product of 2"] * 2


@pytest.mark.slow
def test_this_machine_becomes_a_cluster() -> None:
    """Two local workers give a cluster that a plan can use.

    It has fitted figures of all kinds, and memory is divided evenly.
    """
    cluster = measure_local(2, limit_s=1.0, effort=0.3)
    (level,) = cluster.levels
    assert (level.name, level.width, cluster.device_type) == ("local", 2, "cpu-core")
    # Wide bounds, against wrong units only: loopback is neither slower than 1 MB/s nor faster than memory can be.
    assert level.all_reduce is not None
    assert level.members is not None
    assert level.reduce_scatter is not None
    assert level.all_gather is not None
    assert 0.5 <= min(level.reduce_scatter, level.all_gather) <= max(level.reduce_scatter, level.all_gather) < 100
    for link in (level.link, level.all_reduce, level.members):
        assert 1e6 < link.bandwidth_bytes_per_s < 1e12
        assert 0 <= link.latency_s < 1
    assert cluster.host_memory_bytes is not None
    assert cluster.capacity_bytes(1) == cluster.host_memory_bytes / 2
    assert cluster.host_cores == usable_cores()
    assert cluster.transfer_cores > 0
    assert cluster.collective_cores is not None
    assert cluster.collective_cores > 0
    assert 0 < cluster.post_s < 0.1
    assert 0 < cluster.instruction_s < 0.1
    assert Cluster.from_yaml(cluster.to_yaml()) == cluster


def test_an_all_reduce_takes_at_least_what_it_takes_in_training() -> None:
    """Its figures are stretched to what workers see, and never shortened."""
    level = Level("local", 2, 1e9, all_reduce=Link(1e9, 1e-3))
    alone_s = ring_all_reduce_s(2, 4e6, Link(1e9, 1e-3))
    stretched = _seen(level, (4_000_000, 3 * alone_s))
    assert stretched is not None
    assert ring_all_reduce_s(2, 4e6, stretched) == pytest.approx(3 * alone_s)
    assert ring_all_reduce_s(2, 4e3, stretched) == pytest.approx(3 * ring_all_reduce_s(2, 4e3, Link(1e9, 1e-3)))
    assert _seen(level, (4_000_000, alone_s / 2)) == level.all_reduce
    assert _seen(level, (0, 0.0)) == level.all_reduce
    assert _seen(replace(level, all_reduce=None), (4_000_000, 1.0)) is None


def test_halves_are_shares_of_the_all_reduce() -> None:
    """Times of reduce-scatter and all-gather are fractions of the all-reduce.

    The all-reduce time is the predicted time for the same bytes. A fraction is at least that of half a ring.
    """
    level = Level("local", 2, 1e9, all_reduce=Link(1e9, 1e-3))
    whole_s = ring_all_reduce_s(2, 4e6, Link(1e9, 1e-3))
    found = _with_halves(level, (4_000_000, 1.5 * whole_s, 0.25 * whole_s))
    assert (found.reduce_scatter, found.all_gather) == (pytest.approx(1.5), 0.5)
    assert _with_halves(level, (0, 0.0, 0.0)) == level
    assert _with_halves(replace(level, all_reduce=None), (4_000_000, 1.0, 1.0)).reduce_scatter is None


def test_members_that_wait_leave_their_core_to_others() -> None:
    """An exchange counts only with its CPU time if workers exceed cores.

    A message counts with its whole duration.
    """
    exchange = LinkSample(0, MEMBERS, 2, 4096, 4e-3, 0.05)
    message = LinkSample(0, POINT_TO_POINT, 2, 4096, 4e-3, 0.05)
    found = _without_waiting((exchange, message))
    assert found == (replace(exchange, seconds=pytest.approx(2e-4)), message)


def test_times_that_make_no_sense_are_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Implausible times are measured again, for a longer time.

    If they are implausible three times, there is an error.
    """
    looks: list[float] = []

    def measured(workers: int, effort: _Effort) -> _Found:
        looks.append(effort.limit_s)
        grows = 1e-9 if len(looks) == 2 else -1e-9
        sizes = (1024, 4096, 16384)
        return _Found(
            tuple(LinkSample(0, kind, 2, n, 1e-3 + grows * n) for kind in (POINT_TO_POINT, ALL_REDUCE) for n in sizes)
        )

    monkeypatch.setattr(local_links, "_measured", measured)
    assert measure_local(2, limit_s=2.0).levels[0].bandwidth_bytes_per_s == pytest.approx(1e9)
    assert looks == [2.0, 6.0]
    with pytest.raises(InputError, match="do not grow"):
        measure_local(2)
    assert looks[2:] == [10.0, 30.0, 90.0]


def test_one_worker_needs_no_link() -> None:
    """A single worker starts nothing, and may use all memory."""
    cluster = measure_local(1)
    assert cluster.devices == 1
    assert cluster.capacity_bytes(0) == cluster.host_memory_bytes


@pytest.mark.parametrize(("workers", "threads", "place"), [(0, 1, "workers"), (-2, 1, "workers"), (2, 0, "threads")])
def test_impossible_numbers_are_refused(workers: int, threads: int, place: str) -> None:
    """No workers, or workers without a thread, are the user's error."""
    with pytest.raises(InputError) as caught:
        measure_local(workers, threads)
    assert caught.value.place == place


@pytest.mark.slow
def test_a_worker_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that cannot start is named in the error.

    The error contains its last output. No process is left.
    """
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    monkeypatch.setattr(sys, "platform", "elsewhere")  # workers that are no forks, whose environment this is
    with pytest.raises(WorkerLost, match=r"measuring links: worker \d ended with code 1: .*no-such-interface"):
        measure_local(2, timeout_s=60)


def test_workers_that_do_not_end_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that are silent past the time limit are named and killed."""
    started = []

    def sleeper(*_: object, **__: object) -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        return started[-1]

    monkeypatch.setattr(local_links.fork_server, "start", sleeper)
    with pytest.raises(WorkerLost, match=r"workers \[0, 1\] did not end within 0\.2 s"):
        measure_local(2, timeout_s=0.2)
    assert [process.poll() is not None for process in started] == [True, True]


def test_several_transfers_are_measured_at_a_time(tmp_path: Path) -> None:
    """The seconds and the processor time of a measurement are divided by the number of its transfers."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "meeting"), 1), rank=0, world_size=1)
    try:
        count, busy = itertools.count(), itertools.count(step=3)
        kind = _Kind("any", (0,), 4, statistics.median, _nothing, lambda _: lambda _: None, lambda: float(next(busy)))
        (found,) = _series(kind, [8], 5, 1e9, torch.device("cpu"), lambda: float(next(count)))
    finally:
        dist.destroy_process_group()
    assert found == (8, 0.25, 3.0)  # one tick of the clock, and three of the processor's, for four transfers
