"""Figures of simulated runs of drawn plans of each strategy, equal to those that are kept in runs/.

After a change that is meant, write them again with --update-golden, and read the difference.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest

from hocket.cost.background.background import Background, Launch
from hocket.cost.contention import Collocation
from hocket.cost.sizes import PlanSizes
from hocket.program.memory_bound.footprint import footprints
from hocket.program.trace.overlap import Overlap
from hocket.simulation.analysis.overlap_gain import overlap_of
from hocket.simulation.analysis.traffic import traffic_of
from hocket.simulation.analysis.without_overlap import sums_apart
from hocket.simulation.background.background import Collocated, collocate
from hocket.simulation.critical_path import critical_seconds
from hocket.simulation.result import SimulationResult
from hocket.simulation.simulator import lay_out, play
from hocket.simulation.steady_state import steady_state
from hocket.simulation.summary import summarize
from hocket.simulation.swapping.host_memory import host_course
from hocket.simulation.swapping.traffic import swaps_of
from hocket.strategies.base.strategy import members
from tests.kept import check
from tests.simulation.helpers.drawn_runs import drawn_runs

RUNS = range(10)


def told(figures: Mapping | Iterable | float | str | None) -> str:
    """Figures with nine digits."""
    if isinstance(figures, Mapping):
        return "{" + ", ".join(f"{key}: {told(figures[key])}" for key in figures) + "}"
    if isinstance(figures, str) or figures is None:
        return str(figures)
    if isinstance(figures, Iterable):
        return "(" + ", ".join(map(told, figures)) + ")"
    return f"{figures:.9g}"


def course(outcome: SimulationResult) -> Iterable[str]:
    """Times, bytes and the steady state of a run."""
    steady, found = steady_state(outcome), summarize(outcome, 2, len(outcome.program.stages) % 2 == 0)
    yield f"{told(steady.period_s)} s, {steady.last}, {told(steady.batches)} batches, busy {told(steady.busy_s)}"
    yield f"bubble {told(found.bubble_fraction)}, used {told(found.utilization)}, {told(found.samples_per_s)} a second"
    yield f"{told(found.makespan_s)} s, {found.instructions} instructions, causes {int(outcome.cause.sum())}"
    yield f"starts {told(outcome.start_s.sum())}, ends {told(outcome.end_s.sum())}, late {told(outcome.late_s.sum())}"
    yield f"peaks {told(found.peak_memory_bytes)}, versions {found.weight_versions}, stashes {found.stashes}"
    yield f"sent {told(found.sent_bytes)} {told(found.sent_bytes_between)}, swapped {told(found.swapped_bytes)}"
    alone = traffic_of(outcome)
    yield f"messages {told(alone.messages)}, collectives {told(alone.collectives)}"
    path = critical_seconds(outcome)
    figures = (path.compute_s, path.link_s, path.host_s, path.waiting_s)
    yield f"path {' '.join(map(told, figures))} of {len(found.critical_path)}: {' < '.join(found.critical_path[-2:])}"
    trace = outcome.trace
    times = [told(row.sum()) for row in (trace.start_s, trace.end_s, trace.index, trace.stage, trace.kind)]
    weighted = (trace.memory_s * (1 + trace.memory_device)).sum(), trace.memory_bytes.sum()
    yield f"trace of {len(trace)}: {' '.join(times)}, memory {told(weighted)}"
    for device, most in footprints(outcome.program, PlanSizes(outcome.costs, outcome.program)).items():
        largest = ", ".join(f"{value} {told(size)}" for value, size in most.largest)
        yield f"device {device} at most {told(most.bytes)} at {most.place}: {largest}"
    if found.swapped is not None:
        swapped, moved = found.swapped, np.array(list(swaps_of(outcome)))
        yield f"in {told(swapped.in_bytes)}, out {told(swapped.out_bytes)}, {told(swapped.device_bytes)}"
        yield f"host peaks {told(swapped.host_peak_bytes)}, swaps {told(moved.sum(axis=0) if len(moved) else ())}"
        on_host = footprints(outcome.program, PlanSizes(outcome.costs, outcome.program), host=True)
        yield f"host at most {told({device: most.bytes for device, most in on_host.items()})}"
        for what, series in host_course(outcome)._asdict().items():
            sums = {device: np.array(row).sum(axis=0) for device, row in series.items()}
            yield f"{what} {told(sums)} in {sum(map(len, series.values()))}"


def gain(found: Overlap) -> Iterable[str]:
    """Gradient sums beside and behind the backwards."""
    yield f"overlap: {told(found.iteration_s)} s, apart {told(found.apart_iteration_s)} s, {found.batch}"
    for one in found.devices[:2]:
        yield f"  gained {told(one.gained_s)} s on device {one.beside.device}"
        for row in (one.beside, one.apart):
            pieces = np.array([(p.stage, p.microbatch, p.bucket, p.start_s, p.end_s) for p in row.pieces]).sum(axis=0)
            figures = (row.seconds, row.backward_s, row.sums_s, row.exposed_s, row.start_s)
            yield f"  update {row.update}: {told(figures)} {told(pieces)} others {len(row.others)} {told(map(sum, row.others))}"
            for part in row.sums[:4]:
                at = (part.size_bytes, part.ready_s, part.start_s, part.end_s, part.hidden_s)
                yield f"    {part.kind} {part.stage} {part.bucket} {part.threads} {told(at)}"


def shared(found: Collocated) -> Iterable[str]:
    """What a background job gets, and what it costs."""
    yield (
        f"beside a job: {told(found.slowdown)} times, {told(found.foreground_samples_per_s)} and "
        f"{told(found.background_samples_per_s)} a second, in all {told(found.samples_per_s)}; alone "
        f"{told(found.foreground_samples_per_s_alone)}; room {found.room}, at ceiling {found.at_ceiling}"
    )
    yield f"  idle {told(found.idle)}, lost {told(dict(sorted(found.lost_s.items())))}, paused {len(found.paused)}"
    logs = {device: (len(log), log.sum(axis=0)) for device, log in found.launches.items()}
    spans = {device: (len(rows), rows.sum(axis=0)) for device, rows in found.trace.background.items()}
    yield f"  launches {told(logs)}, spans {told(spans)}, ceilings {told(found.ceilings)}"


@pytest.mark.parametrize("name", members())
@pytest.mark.thinned(most=4)
def test_runs(name: str, update_golden: bool) -> None:
    """Times, traffic, memory, critical path, overlap, swaps, and a background job on the devices."""
    lines = []
    for number, (draw, run) in enumerate(drawn_runs(name, RUNS)):
        layout = lay_out(run.program, draw.choice((None, None, 0, 1, 2, 5)))
        outcome = play(layout, run.costs)
        stages = " ".join(f"{cut.layers}x{cut.devices}" for cut in run.cuts)
        lines += [f"{number}: {stages} {run.batch}, {layout.asked} periods, {run.swap and run.swap.describe()}"]
        lines += course(outcome)
        apart = sums_apart(layout)
        overlap = apart and overlap_of(outcome, play(apart, run.costs))
        lines += gain(overlap) if overlap else [f"no overlap, {apart is None}"]
        rules = Collocation(
            draw.random() < 0.5,
            draw.random() < 0.7,
            draw.choice((1, 2)),
            None,
            draw.choice((1.0, 2.0)),
            draw.choice((1.0, 1.3)),
            draw.choice((float("inf"), 1.1)),
        )
        launches = tuple(Launch(draw.uniform(1e-3, 2e-2), draw.choice((1.0, 0.4))) for _ in range(draw.randint(1, 3)))
        devices = draw.choice((None, (0,), (0, 1)))
        if outcome.makespan_s > 0:
            lines += shared(collocate(outcome, Background("job", 3, launches), rules, devices))
    check(Path(__file__).parent / "runs" / f"{name}.txt", "\n".join(lines) + "\n", update_golden)
