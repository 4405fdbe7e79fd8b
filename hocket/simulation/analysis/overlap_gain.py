"""Gain from overlap: backwards with and without concurrent gradient sums.

A gradient sum is an all-reduce or reduce-scatter of a gradient bucket. Two simulated runs are compared, in an
iteration of the steady state. Nothing is simulated here. One device of every stage is compared, because its replicas
do the same.
"""

from dataclasses import replace

from hocket.program.instruction import Kind, Value, ValueKind
from hocket.program.trace.overlap import (
    BackwardPiece,
    DeviceOverlap,
    GradientSum,
    Overlap,
    SummedBackward,
    summed_backward,
    updates_with_sums,
)
from hocket.simulation.engine.nodes import EPILOGUE, KINDS, PERIOD, ProgramPart
from hocket.simulation.result import SimulationResult
from hocket.simulation.steady_state import steady_state

MOST_DEVICES = 32
_Row = tuple[ProgramPart, int, int, int]  # one backward: see `_backwards`
_Rows = dict[tuple[int, int], list[_Row]]
_BACKWARD = KINDS.index(Kind.BACKWARD)


def overlap_of(beside: SimulationResult, apart: SimulationResult) -> Overlap | None:
    """Compare two runs of one plan.

    Arguments:
        beside: the run with overlap.
        apart: the run without overlap (without_overlap.py).

    Returns:
        None if no gradients are summed over devices.
    """
    shapes = beside.program.stages
    found, rows = [], [_backwards(outcome) for outcome in (beside, apart)]
    for device in _spread(list(dict.fromkeys(shape.devices[0] for shape in shapes))):
        update = _steady_update(beside, device)
        if update is None:
            continue
        one, other = (_cut(o, r, device, update) for o, r in zip((beside, apart), rows, strict=True))
        if one is not None and other is not None and min(one.seconds, other.seconds) > 0:
            found.append(DeviceOverlap(one, other))
    if not found:
        return None
    iterations = [steady_state(outcome).iteration_s for outcome in (beside, apart)]
    return Overlap(iterations[0], iterations[1], beside.program.rule.batch, tuple(found))


def _spread(devices: list[int]) -> list[int]:
    """At most `MOST_DEVICES` devices, evenly spread from the first to the last."""
    if len(devices) <= MOST_DEVICES:
        return devices
    return [devices[round(k * (len(devices) - 1) / (MOST_DEVICES - 1))] for k in range(MOST_DEVICES)]


def _steady_update(outcome: SimulationResult, device: int) -> int | None:
    """Number of the last update of a device that ends in the steady state.

    An update ends with its last gradient sum. If no update ends in the steady state, the result is the last update of
    the run. It is None for a device without gradient sums.
    """
    ends = updates_with_sums(outcome.trace, device)
    last = steady_state(outcome).last
    until_s = outcome.makespan_s
    if last >= 0:
        prologue, period, _ = outcome.layout.sizes
        until_s = float(outcome.end_s[prologue + last * period : prologue + (last + 1) * period].max())
    steady = [update for update, end_s in ends.items() if end_s <= until_s * (1 + 1e-12)]
    return (steady or list(ends))[-1] if ends else None


def _cut(outcome: SimulationResult, rows: _Rows, device: int, update: int) -> SummedBackward | None:
    """Last backwards of one update on a device, and the gradient sums after them.

    Backwards are cut at the moments at which a bucket is complete. Sums have their bytes, threads and the moments at
    which their gradients are complete.

    Arguments:
        rows: result of `_backwards` for the run.

    Returns:
        None if the trace has no such backwards.
    """
    found = summed_backward(outcome.trace, outcome.program.rule.batch, device, update)
    if found is None:
        return None
    pieces = tuple(cut for whole in found.pieces for cut in _pieces(outcome, rows[(device, whole.stage)], whole, found))
    ready = {(piece.stage, piece.bucket): piece.end_s for piece in pieces}
    ends = {piece.stage: piece.end_s for piece in found.pieces}

    def known(one: GradientSum) -> GradientSum:
        value = Value(ValueKind.ACCUMULATOR, one.stage, 0, one.bucket)
        size, threads = (
            outcome.costs.bytes_of((value,), outcome.costs.samples[0]),
            outcome.costs.cuts[one.stage].threads,
        )
        one = replace(one, size_bytes=size, threads=threads[one.bucket] if one.bucket < len(threads) else 0)
        return replace(one, ready_s=ready.get((one.stage, one.bucket), ends[one.stage]))

    return replace(found, pieces=pieces, sums=tuple(map(known, found.sums)))


def _backwards(outcome: SimulationResult) -> _Rows:
    """Backwards of a run's program, by (device, stage).

    Returns:
        One tuple for each backward: the part of the program with it (prologue, period or epilogue), the numbers of its
            first and last node in this part, and its microbatch.
    """
    skeleton = outcome.layout.skeleton
    found: _Rows = {}
    for part in skeleton.parts:
        for lane, first, last, kind, stage, index, _, _ in part.rows:
            if kind == _BACKWARD:
                found.setdefault((skeleton.lanes[lane][0], stage), []).append((part, first, last, index))
    return found


def _pieces(
    outcome: SimulationResult, rows: list[_Row], whole: BackwardPiece, found: SummedBackward
) -> list[BackwardPiece]:
    """Cut one backward at the moments at which the gradients of a bucket are complete.

    Arguments:
        rows: backwards of the device and stage, from `_backwards`.
        whole: the backward to cut.
        found: the backwards and sums that it belongs to; times count from their start.
    """
    layout = outcome.layout
    stride = layout.skeleton.program.stride
    for part, first, last, index in rows:
        repetition, rest = 0, whole.microbatch - index
        if part.number == PERIOD:
            repetition, rest = divmod(rest, stride)
        elif part.number == EPILOGUE:
            rest -= layout.repeats * stride
        if rest or not 0 <= repetition < max(1, layout.repeats):
            continue
        cuts = []
        for node in range(first, last + 1):
            number = layout.number((part.number, node, repetition))
            start_s, end_s = (float(at[number]) - found.start_s for at in (outcome.start_s, outcome.end_s))
            bucket = layout.skeleton.signatures[part.signature[node]].last_bucket
            cuts.append(replace(whole, bucket=bucket, start_s=start_s, end_s=end_s))
        return [cut for cut in cuts if cut.bucket >= 0 or cut.end_s > cut.start_s]
    return [whole]
