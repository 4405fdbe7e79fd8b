"""Overlap of gradient sums with backwards, for one device and update of a trace.

A gradient sum is the all-reduce or reduce-scatter of one gradient bucket.

Rules of this file: names and times of events of a simulated or measured trace only. The caller adds facts that a trace
does not have (bytes, and when a bucket's gradients were there).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hocket.program.instruction import REDUCE, Kind, computes
from hocket.program.trace.trace import KINDS, Trace

SUMS = (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER)
_BUCKET = re.compile(r"b(\d+)$")  # end of the name of a gradient sum, but not of a norm
_MOST_UPDATES = 50  # enough for a median
_FINEST = 1 / 1000  # of the whole span: shorter gaps in other computation are closed


@dataclass(frozen=True)
class BackwardPiece:
    """Part of a backward that ends when a bucket's gradients are there.

    Attributes:
        bucket: the last bucket that the part finishes; -1 if buckets are not known.
    """

    stage: int
    microbatch: int
    bucket: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class GradientSum:
    """All-reduce or reduce-scatter of one gradient bucket.

    Attributes:
        kind: "all_reduce" or "reduce_scatter".
        threads: communication threads; 0 for the library's default.
        ready_s: when the bucket's gradients are there on this device; None if that was not recorded.
        hidden_s: seconds between start and end in which the device computes.
    """

    stage: int
    bucket: int
    kind: str
    size_bytes: float
    threads: int
    ready_s: float | None
    start_s: float
    end_s: float
    hidden_s: float

    @property
    def seconds(self) -> float:
        """Seconds from start to end."""
        return self.end_s - self.start_s

    @property
    def exposed_s(self) -> float:
        """Seconds of the sum in which its device does not compute."""
        return max(0.0, self.seconds - self.hidden_s)


@dataclass(frozen=True)
class SummedBackward:
    """Last backward of each stage for an update on one device, and its gradient sums.

    Times are in seconds from the start of the first of these backwards.

    Attributes:
        update: number of the update.
        start_s: when the first backward begins, on the trace's clock.
        pieces, sums: in the order of their starts.
        others: (start, end) of other computation on the device meanwhile.
    """

    device: int
    update: int
    start_s: float
    pieces: tuple[BackwardPiece, ...]
    sums: tuple[GradientSum, ...]
    others: tuple[tuple[float, float], ...]

    @property
    def seconds(self) -> float:
        """Seconds until the last backward and the last sum end."""
        return max([*(p.end_s for p in self.pieces), *(s.end_s for s in self.sums)])

    @property
    def backward_s(self) -> float:
        """Seconds of the backwards, added up."""
        return sum(p.end_s - p.start_s for p in self.pieces)

    @property
    def sums_s(self) -> float:
        """Seconds of all gradient sums, added up."""
        return sum(s.seconds for s in self.sums)

    @property
    def exposed_s(self) -> float:
        """Seconds of the gradient sums in which the device does not compute."""
        return sum(s.exposed_s for s in self.sums)


@dataclass(frozen=True)
class DeviceOverlap:
    """Overlap of backwards and gradient sums on one device.

    Attributes:
        beside: last backwards and sums of an update as the plan runs them.
        apart: the same update without overlap: sums begin when the backwards are over.
    """

    beside: SummedBackward
    apart: SummedBackward

    @property
    def gained_s(self) -> float:
        """Seconds that overlap saves, from the first backward to the end of the last sum."""
        return self.apart.seconds - self.beside.seconds


@dataclass(frozen=True)
class Overlap:
    """Gain by overlap of backwards and gradient sums.

    Attributes:
        iteration_s: seconds of an iteration with overlap.
        apart_iteration_s: seconds of an iteration without overlap.
        batch: for each stage, the number of microbatches of an update.
        devices: the first replica of every stage with gradient sums, or a selection of these.
    """

    iteration_s: float
    apart_iteration_s: float
    batch: tuple[int, ...]
    devices: tuple[DeviceOverlap, ...]


def updates_with_sums(trace: Trace, device: int) -> dict[int, float]:
    """End of the last gradient sum of each update on a device, in seconds, by update."""
    mask = _sums(trace, device)
    found: dict[int, float] = {}
    for update, end_s in zip(trace.index[mask].tolist(), trace.end_s[mask].tolist(), strict=True):
        found[update] = max(end_s, found.get(update, end_s))
    return dict(sorted(found.items()))


def _sums(trace: Trace, device: int) -> np.ndarray:
    """Boolean mask of a trace's events: True for gradient sums of a device."""
    bucket = np.array([_BUCKET.search(label) is not None for label in trace.labels], dtype=bool)
    lanes = np.array([d == device and lane.startswith(REDUCE) for d, lane in trace.lanes], dtype=bool)
    if not len(trace):
        return np.zeros(0, dtype=bool)
    found: np.ndarray = lanes[trace.lane] & np.isin(trace.kind, [KINDS.index(k) for k in SUMS]) & bucket[trace.label]
    return found


def summed_backward(trace: Trace, batch: Sequence[int], device: int, update: int) -> SummedBackward | None:
    """Last backwards and gradient sums of a device for an update; None without any.

    Arguments:
        batch: for each stage, the number of microbatches of an update.
    """
    sums = np.flatnonzero(_sums(trace, device) & (trace.index == update))
    compute = np.array([d == device and computes(lane) for d, lane in trace.lanes], dtype=bool)
    own = np.flatnonzero(compute[trace.lane]) if len(trace) else sums
    backward = KINDS.index(Kind.BACKWARD)
    behind = []
    for stage in sorted(set(trace.stage[sums].tolist())):
        mine = own[(trace.kind[own] == backward) & (trace.stage[own] == stage)]
        mine = mine[trace.index[mine] // batch[stage] == update]
        if not len(mine):
            return None
        behind.append(int(mine[np.argmax(trace.index[mine])]))
    if not behind:
        return None
    begin_s = float(trace.start_s[behind].min())
    starts, ends = trace.start_s[own], trace.end_s[own]
    made = []
    for k in sums.tolist():
        start_s, end_s = float(trace.start_s[k]), float(trace.end_s[k])
        hidden_s = float(np.maximum(0.0, np.minimum(ends, end_s) - np.maximum(starts, start_s)).sum())
        bucket = _BUCKET.search(trace.name(k))
        made.append(
            GradientSum(
                int(trace.stage[k]),
                int(bucket[1]) if bucket else -1,
                str(KINDS[trace.kind[k]]),
                0.0,
                0,
                None,
                start_s - begin_s,
                end_s - begin_s,
                min(hidden_s, end_s - start_s),
            )
        )
    pieces = [
        BackwardPiece(
            int(trace.stage[k]),
            int(trace.index[k]),
            -1,
            float(trace.start_s[k]) - begin_s,
            float(trace.end_s[k]) - begin_s,
        )
        for k in behind
    ]
    found = SummedBackward(
        device,
        update,
        begin_s,
        tuple(sorted(pieces, key=lambda p: p.start_s)),
        tuple(sorted(made, key=lambda s: (s.start_s, s.end_s, s.stage, s.bucket))),
        (),
    )
    return replace(found, others=_others(trace, own[~np.isin(own, behind)], begin_s, found.seconds))


def _others(trace: Trace, own: np.ndarray, begin_s: float, span_s: float) -> tuple[tuple[float, float], ...]:
    """(start, end) of other computation in a span, in seconds from the span's start."""
    found: list[tuple[float, float]] = []
    inside = own[(trace.end_s[own] > begin_s) & (trace.start_s[own] < begin_s + span_s)]
    for k in inside[np.argsort(trace.start_s[inside], kind="stable")].tolist():
        start_s = max(0.0, float(trace.start_s[k]) - begin_s)
        end_s = min(span_s, float(trace.end_s[k]) - begin_s)
        if found and start_s - found[-1][1] <= span_s * _FINEST:
            found[-1] = (found[-1][0], max(end_s, found[-1][1]))
        elif end_s > start_s:
            found.append((start_s, end_s))
    return tuple(found)


def usual(trace: Trace, batch: Sequence[int], device: int) -> SummedBackward | None:
    """Update with the median time in the later half of a run; None without updates.

    The time is that of the last backwards and the gradient sums.
    """
    updates = list(updates_with_sums(trace, device))
    found = [summed_backward(trace, batch, device, u) for u in updates[len(updates) // 2 :][:_MOST_UPDATES]]
    whole = sorted((f for f in found if f is not None), key=lambda f: (f.seconds, f.update))
    return whole[len(whole) // 2] if whole else None
