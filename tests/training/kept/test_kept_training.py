"""What is made of drawn reports and measurements of runs, equal to what is kept beside this file.

After a change that is meant, write the files again with --update-golden, and read the difference.
"""

import io
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hocket.hardware.cluster import Cluster, Level, Link
from hocket.planning.plan import Plan, PlanStage, Predicted
from hocket.program.instruction import Kind
from hocket.program.trace.trace import Event
from hocket.runtime.progress.segments import SegmentCounts, segments, stop_in
from hocket.training.calibrate.buckets.fit import Noted, OverlapStep, measured
from hocket.training.calibrate.buckets.measure import check_good, with_overlap
from hocket.training.calibrate.buckets.random_buckets import BucketSampling, drawn
from hocket.training.calibrate.run_feedback import unlike_host_link
from hocket.training.callbacks.step_info import StepInfo
from hocket.training.worker.monitor.collector import Collector
from hocket.training.worker.monitor.display import JsonLines, TrainingBar
from hocket.training.worker.monitor.listener import RunSummary
from hocket.training.worker.monitor.summary_table import summary_table
from hocket.training.worker.monitor.trace_writer import met
from tests.kept import check, tried

CLUSTER = Cluster("c", (Level("server", 4, 1e9),), "v100-16gb")


def plan(draw: random.Random, devices: int) -> Plan:
    """A plan of one stage on some devices, most often with a prediction."""
    peaks = {d: draw.uniform(1e8, 5e9) for d in range(devices)}
    predicted = Predicted(draw.uniform(0.01, 0.5), 10.0, peaks, {}) if draw.random() < 0.8 else None
    return Plan(
        "data_parallel", "p.json", 8, 2, (PlanStage(("a",), tuple(range(devices))),), CLUSTER, predicted=predicted
    )


class Seen:
    """A listener that notes all it is told, and tells the bar."""

    def __init__(self, bar: TrainingBar, clock: list[float]) -> None:
        self.bar, self.clock, self.lines = bar, clock, list[str]()

    def __getattr__(self, name: str) -> Callable[..., None]:
        def note(*told: Any) -> None:
            own = told[0].line() if isinstance(told[0], RunSummary) else told
            self.lines.append(f"  {name} {own}")
            if hasattr(self.bar, name):
                getattr(self.bar, name)(*told)
                self.lines += [f"    |{self.bar.line(width)}|" for width in (24, 60, 130)] if name == "step" else []

        return note


class Called:
    """Callbacks that are called at once, where a run calls them in a thread of their own."""

    def __init__(self, lines: list[str]) -> None:
        self.lines, self.failure = lines, None

    def start(self, info: StepInfo, has_own: bool) -> None:
        """Note the figures at the start."""
        self.lines.append(f"  start {has_own} {info}")

    def step(self, info: StepInfo) -> None:
        """Note the figures of a step."""
        self.lines.append(f"  callback {info}")

    checkpoint = step


def reports(draw: random.Random, first: int, norms: bool) -> list[tuple[int, dict[str, Any]]]:
    """Reports of the workers of a run, nearly in order."""
    found: list[tuple[float, int, dict[str, Any]]] = []
    at_s, number = 100.0, 0
    for step in range(first, first + draw.randint(5, 12)):
        at_s += draw.choice((0.05, 0.2, 0.4))
        for rank in range(2):
            for microbatch in range(2):
                weight = draw.choice((2.0, 3.0, 0.0, 50.0))
                told = {
                    "event": "loss",
                    "step": step,
                    "microbatch": 2 * rank + microbatch,
                    "samples": 2,
                    "weight": weight,
                }
                total = draw.choice((1.5, 2.25, 0.5, 1.0)) * weight if draw.random() < 0.97 else None
                more = {"lr": draw.choice(([0.1], [0.1, None, 0.05], [0.02, 0.02]))} if draw.random() < 0.8 else {}
                found.append(
                    (at_s + draw.uniform(0, 0.3), rank, told | more | {"sum": total, "at_s": at_s + 0.01 * rank})
                )
        if norms:
            norm = draw.choice((None, 0.5, 12.345))
            found.append((at_s + draw.uniform(0, 0.5), 0, {"event": "norm", "step": step, "norm": norm}))
        if draw.random() < 0.3:
            number += 1
            found.append(
                (at_s + 0.3, 0, {"event": "saved", "step": step + 1, "path": f"runs/{number}", "at_s": at_s + 0.3})
            )
        if draw.random() < 0.3:
            kind = draw.choice(("warning", "skipped"))
            told = {"event": "not_finite", "step": step, "kind": kind, "text": f"step {step} is not finite"}
            found += [(at_s, rank, told) for rank in range(2)]
    return [(rank, told) for _, rank, told in sorted(found, key=lambda one: one[0])]


def done(draw: random.Random, rank: int, steps: int) -> dict[str, Any]:
    """The last report of a worker."""
    return {
        "event": "done", "steps": steps, "iteration_s": draw.choice((None, 0.2 + 0.01 * rank, 0.3)), "stopped": draw.random() < 0.2,
        "warm_steps": draw.choice((0, 2.5, 4)), "queued_share": draw.choice((0, 0.04, 0.05, 0.051, 0.3)), "skipped": draw.choice((0, 0, 2)),
        "optimizer": draw.choice(("", "Adam")), "dtype": "float32", "device_type": draw.choice(("v100-16gb", "p100")),
        "peak_memory_bytes": draw.choice((0, int(2e9), int(2e9), int(3.3e9))),
        "swaps": draw.choice((None, {"size_bytes": 5e9, "seconds": 2.0})),
    }  # fmt: skip


def of_runs(draw: random.Random) -> list[str]:
    """The steps, the bar, the log and the summary of a run."""
    devices, first, norms = draw.choice((2, 4)), draw.choice((0, 5)), draw.random() < 0.5
    chosen, log, shown, clock = plan(draw, devices), io.StringIO(), io.StringIO(), [0.0]
    console = Console(file=shown, width=100, force_terminal=False, _environ={})
    seen = Seen(TrainingBar(console, lambda: clock[0], log), clock)
    collector = Collector(chosen, seen, Called(seen.lines))  # type: ignore[arg-type]
    told = reports(draw, first, norms)
    start = {
        "event": "start",
        "first": first,
        "steps": first + draw.choice((9, 90)),
        "checkpoint": draw.choice((None, "old")),
    }
    start |= {"norms": norms, "tokens": draw.random() < 0.5, "callbacks": draw.random() < 0.5, "at_s": 99.5}
    told.insert(draw.choice((0, 0, 1, 3)), (0, start))
    for rank, event in told:
        clock[0] += draw.choice((0.0, 0.04, 0.3, 31.0))
        collector.take(rank, event)
    seen.lines.append(f"  {collector.stopped_at_once(None)}; {collector.stopped_at_once('runs')}; {collector.halted}")
    steps = draw.choice((first, first + 5))
    for rank in range(devices):
        collector.take(rank, done(draw, rank, steps))
    summary = collector.summary(tuple(range(devices))[::-1])
    seen.finished(summary)
    summary = replace(summary, checkpoint_steps=draw.choice((steps, 1)))
    out = io.StringIO()
    JsonLines(out, out).finished(summary)
    JsonLines(out, out).saved(3, "runs/3")
    lines = [
        *seen.lines,
        *log.getvalue().splitlines(),
        *shown.getvalue().splitlines(),
        summary.saved,
        summary.stop,
        summary.queued,
    ]
    lines += [out.getvalue(), summary_table(summary), f"{summary.device_types} {summary.optimizer} {summary.swaps}"]
    for rate in (1e9, 2e9, 5e9):
        lines.append(unlike_host_link(replace(CLUSTER, host_link=Link(rate)), summary.swaps))
    return lines


def noted(
    draw: random.Random, names: tuple[str, ...], sizes: tuple[float, ...], sampling: BucketSampling
) -> list[Noted]:
    """Measurements of one worker: communication of about the seconds of its bytes, behind gradients that come one by one."""
    found = []
    for one in drawn(names, sizes, sampling):
        ends = (0, *accumulate(map(len, one.buckets)))
        spans = [range(a, b) for a, b in pairwise(ends)]
        bucket_bytes = tuple(sum(sizes[k] for k in span) for span in spans)
        steps = []
        for k in range(sampling.steps):
            begin_s = 10.0 * k
            arrivals = tuple(
                (name, begin_s + at_s)
                for name, at_s in zip(names, accumulate(draw.uniform(8e-3, 12e-3) for _ in names), strict=True)
            )
            sums, free_s = [], 0.0
            for span, size, threads in zip(spans, bucket_bytes, one.threads, strict=True):
                start_s = max(free_s, arrivals[span[-1]][1])
                free_s = start_s + (1e-3 + size / (1e8 * threads**0.5)) * draw.uniform(0.9, 1.2)
                sums.append((start_s, free_s))
            steps.append(OverlapStep((begin_s, arrivals[-1][1] + draw.choice((0.0, 1e-3))), arrivals, tuple(sums)))
        found.append(Noted(bucket_bytes, one.threads, one.buckets, tuple(steps)))
    return found


def of_fits(draw: random.Random) -> list[str]:
    """Random buckets, and the model that is fitted to measurements with noise."""
    count = draw.randint(6, 12)
    names = tuple(f"layer{k}" for k in range(count))
    sizes = (*(draw.choice((0.0, 1e4, 3e5, 2e6)) for _ in names[:-1]), 1e6)
    sampling = BucketSampling(
        draw.randint(5, 9), draw.choice((3, 6)), draw.choice(((1, 2), (1, 2, 4))), draw.randint(0, 9)
    )
    lines = [f"  {one.threads} {[len(bucket) for bucket in one.buckets]}" for one in drawn(names, sizes, sampling)]
    try:
        found = measured([noted(draw, names, sizes, sampling) for _ in range(2)])
    except Exception as error:
        return [*lines, f"  {type(error).__name__}: {error}"]
    model = found.fitted.model
    figures = (model.kept, model.taken, model.latency_s, found.error, found.backward_s)
    lines.append(f"  {[f'{figure:.4g}' for figure in figures]} {model.threads} {model.workers}")
    for run in (*found.runs, *found.held_out):
        lines.append(f"  {run.buckets} {run.threads} {run.measured_s:.6g} {run.predicted_s:.3g} {run.error:.3f}")
    lines += [f"  {own.end_s:.6g} {[f'{at:.6g}' for at in own.arrival_s.values()]}" for own in found.alone]
    overlap = with_overlap(plan(draw, 4), found).levels[0].overlap
    return [*lines, f"  {overlap == model} {tried(check_good, found)}"]


def of_segments(draw: random.Random) -> list[str]:
    """Segments of programs, and the ends of stopped ones."""
    pace = SegmentCounts(draw.choice((0, 0, 2, 3, 7)), draw.choice((1, 2, 4, 6)), draw.choice((1, 2, 3, 4, 8)))
    lines = [f"  {pace}: {[pace.steps(k) for k in range(5)]}"]
    for start, end, every in ((0, 7, None), (3, 9, 2), (0, 5, 9), (2, 2, 1), (0, 12, 5)):
        try:
            found = list(segments(pace, start, end, every))
        except Exception as error:
            lines.append(f"  {start} {end} {every} {error}")
            continue
        for one in found:
            told = one.first_step, one.end_step, one.first_period, one.end_period
            stops = [stop_in(pace, one, at) for at in (0, 1, one.first_period + 1, one.end_period, 10**6)]
            lines.append(f"  {start} to {end} every {every}: {told} stops {stops}")
    return lines


def of_traces(draw: random.Random) -> list[str]:
    """Transfers of a trace, moved to where both sides are ready."""
    members, events = draw.choice((1, 2)), []
    for number in range(6):
        source, target = draw.sample(range(2 * members), 2)
        start_s = draw.uniform(0, 3)
        for kind, device in ((Kind.SEND, source), (Kind.RECEIVE, target)):
            begin_s = start_s + draw.uniform(0, 0.5)
            name = f"{kind.value} activation {number}"
            events.append(
                Event(
                    device,
                    draw.choice(("in", "out")),
                    name,
                    kind,
                    0,
                    number,
                    begin_s,
                    begin_s + draw.uniform(0.2, 2),
                    0.0,
                )
            )
    events.append(Event(0, "compute", "forward 1", Kind.FORWARD, 0, 1, 0.5, 1.0, 0.0))
    return [f"  {one.device} {one.lane} {one.name} {one.start_s:.6f} {one.end_s:.6f}" for one in met(events, members)]


PARTS = {"runs": (of_runs, 8), "fits": (of_fits, 5), "segments": (of_segments, 14), "traces": (of_traces, 10)}


@pytest.mark.parametrize("name", PARTS)
def test_figures(name: str, update_golden: bool) -> None:
    """What one part of the room makes of each draw."""
    part, tasks = PARTS[name]
    lines = []
    for seed in range(tasks):
        lines += [f"{seed}:", *part(random.Random(f"{seed} {name}"))]
    check(Path(__file__).with_name(f"{name}.txt"), "\n".join(lines) + "\n", update_golden)
