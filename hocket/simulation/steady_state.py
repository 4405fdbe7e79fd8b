"""Steady state of a run: seconds of one period, and busy seconds of the devices.

A program repeats its period. The steady state is measured between the ends of two repetitions, after the pipeline has
filled and before it drains.
"""

from dataclasses import dataclass
from math import gcd

import numpy as np

from hocket.program.instruction import COMPUTE, computes
from hocket.program.trace.usage import COMPUTES
from hocket.simulation.engine.nodes import KINDS, PERIOD
from hocket.simulation.result import SimulationResult

_BUSY = tuple(k for k, kind in enumerate(KINDS) if kind in COMPUTES)


@dataclass(frozen=True)
class Steady:
    """Steady state of a run.

    Attributes:
        period_s: mean seconds of one repetition of the period.
        busy_s: mean seconds in one repetition in which each device computes.
        last: index of the last repetition that is measured; -1 if the whole run counts as one period.
        batches: number of batches in one period; it may be a fraction.
    """

    period_s: float
    busy_s: dict[int, float]
    last: int
    batches: float

    @property
    def iteration_s(self) -> float:
        """Seconds of one batch."""
        return self.period_s / self.batches

    @property
    def bubble_fraction(self) -> float:
        """Idle seconds of all devices, relative to their busy seconds."""
        busy = sum(self.busy_s.values())
        return len(self.busy_s) * self.period_s / busy - 1 if busy > 0 else 0.0


def steady_state(outcome: SimulationResult) -> Steady:
    """Measure the steady state between the ends of two repetitions of the period.

    In a run with fewer than two repetitions, the whole run counts as one period.
    """
    layout, program, batch = outcome.layout, outcome.program, len(outcome.costs.samples)
    prologue, period, _ = layout.sizes
    repeats = layout.repeats
    if repeats < 2:
        busy = _busy(outcome, 0, len(outcome.end_s), whole=True)
        busy |= _together(outcome, 0.0, outcome.makespan_s)
        microbatches = max(1, program.microbatches(outcome.repeats))
        return Steady(outcome.makespan_s, busy, -1, microbatches / batch)
    ends = outcome.end_s[prologue : prologue + repeats * period].reshape(repeats, period).max(axis=1)
    # The last repetition may run faster than the others, while the pipeline drains.
    last = repeats - 2 if repeats > 3 else repeats - 1
    first = (last - 1) // 2
    # If microbatches differ in size, the measured span must have whole batches.
    rounds = outcome.costs.rounds // gcd(outcome.costs.rounds, max(program.stride, 1))
    whole = max(1, (last - first) // rounds) * rounds
    first = last - whole if whole <= last else first
    seconds = float(ends[last] - ends[first]) / (last - first)
    busy = _busy(outcome, first + 1, last + 1, whole=False)
    busy |= _together(outcome, float(ends[first]), float(ends[last]))
    return Steady(seconds, {d: b / (last - first) for d, b in busy.items()}, last, program.stride / batch)


def _busy(outcome: SimulationResult, first: int, stop: int, whole: bool) -> dict[int, float]:
    """Seconds of computation of each device, summed over its compute lanes.

    Arguments:
        first: index of the first repetition of the period to count.
        stop: index of the repetition after the last one to count.
        whole: True to count the whole run; `first` and `stop` are then ignored.
    """
    skeleton = outcome.layout.skeleton
    prologue, period, _ = outcome.layout.sizes
    busy = dict.fromkeys(outcome.program.devices, 0.0)
    duration = outcome.end_s - outcome.start_s
    for part in skeleton.parts:
        if not whole and part.number != PERIOD:
            continue
        kinds = np.array([KINDS.index(skeleton.signatures[s].members[0].kind) for s in part.signature], dtype=np.int64)
        if part.number == PERIOD:
            start, end = (0, outcome.layout.repeats) if whole else (first, stop)
            span = duration[prologue + start * period : prologue + end * period].reshape(end - start, period)
            seconds = span.sum(axis=0)
        else:
            base = 0 if part.number < PERIOD else len(duration) - len(kinds)
            seconds = duration[base : base + len(kinds)]
        lanes = np.bincount(
            np.array(part.lane, dtype=np.int64)[np.isin(kinds, _BUSY)],
            weights=seconds[np.isin(kinds, _BUSY)],
            minlength=len(skeleton.lanes),
        )
        for (device, _), amount in zip(skeleton.lanes, lanes.tolist(), strict=True):
            busy[device] += amount
    return busy


def _together(outcome: SimulationResult, begin_s: float, end_s: float) -> dict[int, float]:
    """Seconds in which devices with several compute lanes compute.

    Seconds in which several lanes of a device compute count once. Devices with one compute lane are left out.

    Arguments:
        begin_s, end_s: span of the run to count.
    """
    layout, lanes = outcome.layout, outcome.layout.skeleton.lanes
    several = {device for device, lane in lanes if computes(lane) and lane != COMPUTE}
    if not several:
        return {}
    own = np.array([device if computes(lane) and device in several else -1 for device, lane in lanes])
    kinds = np.array([KINDS.index(s.members[0].kind) for s in layout.skeleton.signatures], dtype=np.int64)
    device_of = []
    for part in layout.skeleton.parts:
        found = np.where(np.isin(kinds[np.array(part.signature, dtype=np.int64)], _BUSY), own[part.lane], -1)
        device_of.append(np.tile(found, layout.repeats if part.number == PERIOD else 1))
    of, busy = np.concatenate(device_of), {}
    for device in sorted(several):
        starts, ends = (np.clip(row[of == device], begin_s, end_s) for row in (outcome.start_s, outcome.end_s))
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], np.maximum.accumulate(ends[order])
        gaps = np.maximum(0.0, starts[1:] - ends[:-1]).sum()
        busy[device] = float(ends[-1] - starts[0] - gaps) if len(starts) else 0.0
    return busy
