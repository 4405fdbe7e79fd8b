"""Measure overlap of computation and all-reduces by training with random buckets.

Every worker makes the same draws from one seed, and trains some steps under each draw. It records the time of each
parameter's gradient, and begin and end of each bucket's all-reduce. fit.py evaluates the records.

Source: LIBRA (Liu et al. 2023), section III.A and Algorithm 2.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch

from hocket.planning.plan import Plan
from hocket.profiling.capture.capture import Captured
from hocket.program.instruction import Instruction, Kind, ValueKind
from hocket.runtime.engine.distributed import Worker
from hocket.runtime.progress.heartbeat import Heartbeat
from hocket.runtime.progress.progress_observer import Watched
from hocket.runtime.progress.segments import SegmentCounts, segments
from hocket.runtime.stage.executable import Executable
from hocket.runtime.update.gradients import Arrival
from hocket.training.calibrate.buckets.fit import OverlapStep
from hocket.training.calibrate.buckets.random_buckets import BucketSampling, drawn
from hocket.training.worker.telemetry import Telemetry

WARM_STEPS = 2


def measure(
    captured: Captured,
    plan: Plan,
    number: int,
    device: torch.device,
    drawing: BucketSampling,
    telemetry: Telemetry,
) -> list[dict[str, Any]]:
    """Train every draw; return this worker's measurements as JSON data (fit.Noted).

    This is a collective call of all workers.

    Arguments:
        number: this worker's device in the plan.
        drawing: settings of the draws.
        telemetry: receives heartbeats, and a note on each draw.
    """
    order, sizes = [layer.name for layer in reversed(captured.layers)], _gradients_bytes(captured)
    every = list(drawn(order, sizes, drawing))
    found = []
    for k, draw in enumerate(every):
        telemetry.note(f"draw {k + 1} of {len(every)}: {len(draw.buckets)} buckets, threads {list(draw.threads)}")
        found.append(noted(captured, draw.plan(plan), number, device, drawing.steps, telemetry.progress))
    return found


def _gradients_bytes(captured: Captured) -> list[float]:
    """Compute the gradient bytes of each layer, last layer first.

    Shared weights count for the first layer in forward order that uses them.
    """
    left = {name: p.nbytes for name, p in captured.job.model.named_parameters() if p.requires_grad}
    found = [float(sum(left.pop(name, 0) for name in layer.parameters)) for layer in captured.layers]
    return found[::-1]


def noted(
    captured: Captured, plan: Plan, number: int, device: torch.device, steps: int, progress: Heartbeat
) -> dict[str, Any]:
    """Train with a plan's own buckets and threads; return a `Noted` as data.

    This is a collective call of all workers.

    Arguments:
        number: this worker's device in the plan.
        steps: steps to measure, after some warm-up steps.
        progress: this worker's progress page.
    """
    program = plan.compile(captured)
    pace = SegmentCounts(program.admitted, program.stride, plan.microbatches)
    watched = Watched(progress, lambda event: None, program, number, pace)
    engine = Worker(
        Executable(captured, plan.layout(captured), program, device), observer=watched, clock=time.perf_counter
    )
    arrivals = engine.device.stages[0].weights.gradients.note(time.perf_counter)
    (segment,) = segments(pace, 0, WARM_STEPS + steps, None)
    watched.begin(segment)
    engine.run(segment.periods)
    watched.end()
    records = [(record.instruction, (record.start_s, record.end_s)) for record in engine.records]
    engine.close()
    buckets = engine.device.stages[0].weights.buckets
    sizes_bytes = [sum(flat.nbytes for flat in of.memory(torch.device("meta"))) for of in buckets.sums]
    return {
        "buckets_bytes": sizes_bytes,
        "threads": plan.stages[0].threads or (1,) * len(sizes_bytes),
        "names": buckets.names,
        "steps": [asdict(step) for step in _steps(records, arrivals)][WARM_STEPS:],
    }


def _steps(
    records: Sequence[tuple[Instruction, tuple[float, float]]], arrivals: Sequence[Arrival]
) -> Iterator[OverlapStep]:
    """Yield one OverlapStep for each update, in order.

    A step has the last backward before the update, the gradients that arrived during this backward, and the update's
    all-reduces.

    Arguments:
        records: instructions with (begin, end) in seconds, in any order.
        arrivals: (parameter name, time of its gradient in seconds), on the same clock.
    """
    backwards = sorted(times for i, times in records if i.kind is Kind.BACKWARD)
    sums: dict[int, dict[int, tuple[float, float]]] = {}
    for instruction, times in records:
        if instruction.kind is Kind.ALL_REDUCE and instruction.reads[0].what is ValueKind.ACCUMULATOR:
            sums.setdefault(instruction.index, {})[instruction.reads[0].part] = times
    each = len(backwards) // len(sums)
    for k, update in enumerate(sorted(sums)):
        backward = backwards[(k + 1) * each - 1]
        own = tuple((name, at_s) for name, at_s in arrivals if backward[0] <= at_s <= backward[1])
        yield OverlapStep(backward, own, tuple(times for _, times in sorted(sums[update].items())))
