"""Plans that are trained in turns by the same workers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hocket.errors import InputError
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.profile import ModelProfile
from hocket.program.trace.chrome import read_trace
from hocket.program.trace.compare import compare
from hocket.training.calibrate.train_in_turns import (
    Turned,
    Turns,
    _benchmark_size,
    _Collectors,
    benchmark_s,
    train_in_turns,
)
from hocket.training.worker.monitor.collector import Collector
from hocket.training.worker.monitor.listener import Quiet, RunSummary
from tests.system.tiny import LAYERS, plan, reference, write_job

LAYER = chain(1).layers[0]
PROFILE: ModelProfile = replace(
    chain(len(LAYERS)),
    name="tiny",
    layers=tuple(replace(LAYER, name=name) for name in LAYERS),
    device_type="cpu-core",
)
FLUSH, REPLICAS = plan("flush"), plan("data_parallel", (7, (0, 1)))


@pytest.mark.slow
@pytest.mark.workers
def test_turns_train_what_runs_of_their_own_do(tmp_path: Path) -> None:
    """Training in turns gives the same losses as separate runs.

    Two plans run seven steps each, in turns of three. The losses are those of one process. The traces contain
    successive turns, and the pace is measured.
    """
    job, traces = write_job(tmp_path), [tmp_path / "flush.json", tmp_path / "replicas.json"]
    turns = list[tuple[int, int]]()
    found = train_in_turns(
        job,
        (FLUSH, REPLICAS),
        steps=7,
        turns=Turns(3, PROFILE, traces),
        on_turn=lambda number, steps: turns.append((number, steps)),
    )
    assert turns == [(0, 3), (1, 3), (0, 6), (1, 6), (0, 7), (1, 7)]
    expected = reference(job, FLUSH, 7)
    for turned, path, one in zip(found, traces, (FLUSH, REPLICAS), strict=True):
        assert turned.summary.losses == pytest.approx(expected, abs=1e-8)
        assert turned.summary.iteration_s is not None
        assert turned.summary.iteration_s > 0
        assert set(turned.paces) == set(turned.stretches) == {0, 1}
        assert all(slower >= turned.paces[d] for d, slower in turned.slower.items())
        trace = read_trace(path)
        assert trace.meta["pace"] == pytest.approx(turned.pace)
        assert one.trace_meta.items() <= trace.meta.items()
        assert len(trace.segments_s) == 3
        # The other plan's turns and the kernel are no time of this one's trace: what lies between two turns is a meeting.
        assert sum(name.startswith("step") for name in map(trace.name, range(len(trace)))) >= 7 * len(one.stages)
        parts = compare(trace, trace).parts
        assert parts is not None
        assert parts.pace_from == "kernel"


@pytest.mark.slow
@pytest.mark.workers
def test_plans_may_need_different_numbers_of_turns(tmp_path: Path) -> None:
    """A plan that cannot train a single step has fewer turns than others, and is finished before them."""
    turns = list[tuple[int, int]]()
    train_in_turns(
        write_job(tmp_path),
        (plan("two_bw"), FLUSH),
        steps=4,
        turns=Turns(1),
        on_turn=lambda number, steps: turns.append((number, steps)),
    )
    late = [steps for number, steps in turns if number == 0]
    assert [steps for number, steps in turns if number == 1] == [1, 2, 3, 4]
    assert late[-1] >= 4
    assert len(late) < 4


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invalid requests are refused before any worker starts.

    Cases: no plans, plans for different numbers of workers, a checkpoint folder, a wrong number of traces, and
    torchrun.
    """
    job = "tests/zoo/none.py"

    def refused(words: str, *plans: Any, **options: Any) -> None:
        with pytest.raises(InputError, match=words):
            train_in_turns(job, plans or (FLUSH,), **({"steps": 4} | options))

    refused("turn_steps: found 0", turns=Turns(0))
    refused("traces: found 2; expected 1", turns=Turns(traces=["a", "b"]))
    refused("checkpoint: found there", checkpoint="there")
    refused("steps: found 0", steps=0)
    with pytest.raises(InputError, match="plans: found none"):
        train_in_turns(job, (), steps=4)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused("starts its own workers")


def test_plans_of_other_numbers_of_workers_do_not_take_turns(tmp_path: Path) -> None:
    """One more stage is one more worker."""
    three = plan("flush", (2, (0,)), (2, (1,)), (3, (2,)))
    with pytest.raises(InputError, match="plans of 2 and 3 workers"):
        train_in_turns(write_job(tmp_path), (FLUSH, three), steps=4)


def test_the_benchmark_is_a_microbatch_as_profiled() -> None:
    """The reference benchmark is a forward and a backward of all layers.

    Its microbatch has the size of most plans.
    """
    plans = [replace(FLUSH, microbatch_size=size) for size in (4, 2, 2, 4, 1)]
    assert _benchmark_size(plans) == 2
    seconds = sum(layer.forward_s[0] + layer.backward_s[0] for layer in PROFILE.layers)
    assert benchmark_s(PROFILE, PROFILE.microbatch_sizes[0]) == pytest.approx(seconds)


def test_reports_of_several_plans() -> None:
    """Each goes to its plan's collector; the last report of a worker is of all plans."""
    taken = list[tuple[int, int]]()
    both = _Collectors([Collector(FLUSH, Quiet()), Collector(REPLICAS, Quiet())], lambda *turn: taken.append(turn))
    done = {"event": "done", "steps": 3, "iteration_s": 0.5, "peak_memory_bytes": 7, "stopped": False}
    both.take(0, {"event": "turn", "plan": 1, "said": done})
    both.take(0, {"event": "turned", "plan": 1, "steps": 3})
    assert (both.done, both.of[0].done, both.of[1].done, taken) == ({}, {}, {0: done}, [(1, 3)])
    both.take(0, {"event": "done"})
    assert list(both.done) == [0]
    assert "nothing was saved" in both.stopped_at_once(None)


def test_pace_and_waits_together() -> None:
    """A device's slowdown is its pace times the stretch of its waits.

    Without a measured kernel there is no pace.
    """
    turned = Turned(RunSummary(4), {0: 1.1, 1: 1.3}, {0: 1.0, 1: 2.0})
    assert turned.pace == pytest.approx(1.2)
    assert turned.slower == pytest.approx({0: 1.1, 1: 2.6})
    assert (Turned(RunSummary(4)).pace, Turned(RunSummary(4)).slower) == (None, {})
