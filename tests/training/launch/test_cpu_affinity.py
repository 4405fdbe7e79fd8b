"""Choice of cores for local workers."""

import os
from pathlib import Path

import pytest

from hocket.training.launch import cpu_affinity, local
from hocket.training.launch.cpu_affinity import cores_of
from hocket.training.worker.options import Options
from tests.system.tiny import Recorder, plan, write_job


def siblings(folder: Path, lists: dict[int, str]) -> Path:
    """A kernel's folder with the hardware threads of each core."""
    for core, text in lists.items():
        place = folder / f"cpu{core}" / "topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(text + "\n")
    return folder


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which this process may use eight processors."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(cpu_affinity, "usable_cores", lambda: 8)


def test_no_core_is_given_twice_and_none_where_there_are_too_few(eight: None, tmp_path: Path) -> None:
    """Four workers of two threads have all cores, five have none of their own."""
    assert cores_of(4, 2, topology=tmp_path) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert cores_of(5, 2, topology=tmp_path) is None


def test_few_workers_stay_on_cores_only_when_asked(eight: None, tmp_path: Path) -> None:
    """A few workers are pinned to cores only on request.

    Another run on the machine would use the same cores. Of eight cores, four workers are not pinned, and five are.
    """
    assert cores_of(4, topology=tmp_path) is None
    assert cores_of(4, pin=True, topology=tmp_path) == ((0,), (1,), (2,), (3,))
    assert cores_of(5, topology=tmp_path) == ((0,), (1,), (2,), (3,), (4,))
    assert cores_of(5, pin=False, topology=tmp_path) is None


@pytest.mark.parametrize("text", ["{a},{b}", "{a}-{b}"])
def test_hardware_threads_of_one_core_are_given_out_last(eight: None, tmp_path: Path, text: str) -> None:
    """A second hardware thread of a core is used last.

    Processors 0 and 1, 2 and 3, and so on are one core each. Four workers have a core each.
    """
    pairs = [(2 * k, 2 * k + 1) for k in range(4)]
    topology = siblings(tmp_path, {core: text.format(a=a, b=b) for a, b in pairs for core in (a, b)})
    assert cores_of(4, pin=True, topology=topology) == ((0,), (2,), (4,), (6,))
    assert cores_of(3, 2, topology=topology) == ((0, 2), (4, 6), (1, 3))


def test_groups_that_have_as_many_members_on_every_core_share_cores(eight: None, tmp_path: Path) -> None:
    """Groups share cores if each core has equally many members.

    Of sixteen workers in groups of eight, member k of each group is on core k. Groups of four, or workers without
    groups, are not pinned.
    """
    assert cores_of(16, topology=tmp_path, group=8) == tuple((core,) for core in (*range(8), *range(8)))
    assert cores_of(8, 2, topology=tmp_path, group=4) == tuple((k, k + 1) for k in (0, 2, 4, 6, 0, 2, 4, 6))
    assert cores_of(16, topology=tmp_path, group=4) is None
    assert cores_of(16, topology=tmp_path) is None
    assert cores_of(16, pin=False, topology=tmp_path, group=8) is None


@pytest.mark.parametrize(("threads", "pin"), [(5, True), (4, True), (5, None)])
def test_a_wish_that_is_not_granted_is_said(
    eight: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, pin: bool | None
) -> None:
    """Workers that were to be pinned, and cannot be for lack of cores, are reported."""
    monkeypatch.setattr(local, "_start", lambda orders, called: None)
    monkeypatch.setattr(local, "_end", lambda workers: None)
    listener, options = Recorder(), Options(1, threads=threads, pin=pin)
    with local.local_workers(write_job(tmp_path), (plan("flush"),), options, listener):
        said = any(note.startswith("workers are not pinned") for note in listener.notes)
    assert said is (threads == 5 and pin is True)
