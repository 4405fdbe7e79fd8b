"""Figures of traces of drawn runs, and of drawn traces that measured runs might have, equal to those in traces.txt.

After a change that is meant, write them again with --update-golden, and read the difference.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np

from hocket.cost.memory.instruction_profile import insides
from hocket.program.trace.busy_time import active_s, all_iterations, iterations, met, once
from hocket.program.trace.chrome import parse_trace, trace_json
from hocket.program.trace.compare import compare
from hocket.program.trace.error_parts import pace_of, parts_of, waits_share
from hocket.program.trace.overlap import summed_backward, updates_with_sums, usual
from hocket.program.trace.trace import Trace
from hocket.program.trace.update_time import predicted_update_s, update_s
from hocket.program.trace.usage import Known, usage
from hocket.program.trace.without_queues import ends_without_waits
from hocket.simulation.simulator import play
from hocket.strategies.base.strategy import members
from tests.kept import check
from tests.simulation.helpers.drawn_runs import drawn_runs

RUNS = range(2)
PERIODS = 5


def told(*figures: float) -> str:
    """Figures with nine digits."""
    return " ".join(f"{one:.9g}" for one in figures)


def measured(draw: Random, trace: Trace) -> Trace:
    """The trace on a clock that goes at drawn paces, with waits for cores, segments and a measured pace."""
    knots = np.linspace(0.0, trace.end, 12)
    times = np.concatenate(([0.0], np.cumsum([draw.uniform(0.8, 1.6) for _ in knots[1:]]) * knots[1]))
    start_s, end_s = (np.interp(row, knots, times) for row in (trace.start_s, trace.end_s))
    waits = np.array([draw.choice((0.0, draw.uniform(0.0, 0.4))) for _ in range(len(trace))])
    meta = {"source": "measured", "program": trace.meta["program"]}
    if draw.random() < 0.5:
        meta["segments_s"] = [0.0, times[-1] * draw.uniform(0.3, 0.7)]
    if draw.random() < 0.3:
        meta["pace"] = draw.uniform(0.8, 1.5)
    if draw.random() < 0.5:
        meta["peak_memory_bytes"] = {"0": draw.uniform(1e6, 1e8)}
    own = np.interp(trace.memory_s, knots, times)
    queued_s = waits * (end_s - start_s)
    found = replace(trace, start_s=start_s, end_s=end_s, memory_s=own, queued_s=queued_s, meta=meta)
    return found.part(0.0, times[-1] * draw.uniform(0.7, 1.1))


def figures(trace: Trace, batch: tuple[int, ...], known: Known, regular: bool) -> Iterator[str]:
    """Iterations, use of devices, and gradient sums.

    Arguments:
        regular: True if all iterations take equally long, so that rounding would decide which of them is usual.
    """
    spans, whole = iterations(trace), all_iterations(trace)
    yield f"{len(trace)} events, iterations {len(spans)} {told(*spans[0])} of {len(whole)} {told(*map(sum, whole))}"
    yield f"busy {told(*active_s(trace).values())}, updates {told(update_s(trace), predicted_update_s(trace))}"
    begun_s, some = once(trace.device, trace.start_s, trace.end_s)
    yield f"met {told(met(trace).sum())}, once {told(begun_s.sum())} {int(some.sum())}, ends {told(trace.end)}"
    for facts, columns in ((known, 64), ({}, 16)):
        used = usage(trace, facts, columns, spans[0] if regular else None)
        yield f"use from {told(used.start_s, used.period_s)}, collectives {told(*used.collective.values())}"
        for device in used.computes:
            row = used.computes[device]
            held = used.held_bytes.get(device)
            least = told(used.kept_bytes(device), used.peak_bytes(device)) if held is not None else "no memory"
            more = told(float(held @ np.arange(columns)), used.valley_share(device)) if held is not None else ""
            yield f"  {told(used.compute_share(device), float(row @ np.arange(columns)))}; {least} {more}"
    for device in trace.devices[:2]:
        ends = updates_with_sums(trace, device)
        yield f"sums of {device}: {told(*ends.values())}"
        for one in (None if regular else usual(trace, batch, device), summed_backward(trace, batch, device, 0)):
            if one is not None:
                rows = [*((p.start_s, p.end_s) for p in one.pieces), *((s.start_s, s.hidden_s) for s in one.sums)]
                total = told(one.seconds, one.backward_s, one.sums_s, one.exposed_s, one.start_s)
                yield f"  {one.update}: {total}, {told(*map(sum, rows))}, others {told(*map(sum, one.others))}"


def differences(predicted: Trace, found: Trace) -> Iterator[str]:
    """The comparison, the error's parts, and the run without waits."""
    compared = compare(predicted, found, 3)
    only = (compared.only_predicted, compared.only_measured, compared.later_predicted, compared.later_measured)
    yield f"only {only}, waits {told(waits_share(found))}, pace {pace_of(predicted, found)[1]}"
    for row in compared.rows:
        yield f"  {row.what}: {told(row.predicted, row.measured, row.relative_error)} of {row.count}"
    ends_s = ends_without_waits(found)
    yield f"without waits {told(ends_s.sum(), ends_s.max(), update_s(found, ends_s))}"
    parts = parts_of(predicted, found)
    for name, seconds, share in parts.rows if parts else ():
        yield f"  {name}: {told(seconds, share)}"


def written(trace: Trace) -> str:
    """Lines of a trace file, and the sum of their numbers."""
    text = trace_json(trace)
    assert parse_trace(text) == trace
    numbers = [float(one) for one in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text)]
    return f"file of {len(text.splitlines())} lines, {told(sum(numbers))}: {text.splitlines()[1][:60]}"


def test_traces(update_golden: bool) -> None:
    """Of a predicted trace and of one on another clock: all figures, their comparison, and the file."""
    lines = []
    for name in members():
        for draw, run in drawn_runs(name, RUNS):
            outcome = play(run.program, run.costs, PERIODS)
            predicted, batch = outcome.trace, run.program.rule.batch
            known = insides(run.costs, run.program)
            lines += [f"{name} {run.batch}", *figures(predicted, batch, known, True), written(predicted)]
            found = measured(draw, predicted)
            lines += ["measured:", *figures(found, batch, {}, False), *differences(predicted, found), written(found)]
    check(Path(__file__).with_name("traces.txt"), "\n".join(lines) + "\n", update_golden)
