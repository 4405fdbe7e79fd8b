"""Usage of devices over one iteration: memory, and the share that computes.

The iteration is divided into time intervals of equal length, called columns.

Rules of this file: simulated and measured traces are treated alike, and plans are not known here. A device is the
whole of its compute lanes. Facts about the inside of an instruction are given by the caller (`InstructionUsage`).
Source: Wang et al., Wavelet (MLSys 2021), section 2.2: figures 1, 2, 5 and 6.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hocket.program.instruction import COLLECTIVES, Kind
from hocket.program.trace.busy_time import all_iterations, iterations, joined, met
from hocket.program.trace.trace import KINDS, Trace

COMPUTES = (Kind.FORWARD, Kind.BACKWARD, Kind.NORM, Kind.STEP)
_COMPUTES = tuple(k for k, kind in enumerate(KINDS) if kind in COMPUTES)
_COLLECTIVES = tuple(k for k, kind in enumerate(KINDS) if kind in COLLECTIVES)
COLUMNS = 512  # intervals of an iteration
REACHED = 0.5  # share of an iteration that must have memory records: each device's record ends at its own moment


class InstructionUsage(Protocol):
    """Memory and compute that a forward or backward uses on its device while it runs.

    The time of the instruction is divided into consecutive pieces.
    """

    @property
    def until(self) -> np.ndarray:
        """End of each piece as a share of the instruction's seconds, ascending to 1."""

    @property
    def below_bytes(self) -> np.ndarray:
        """For each piece, bytes by which the device holds less than the trace records."""

    @property
    def demand(self) -> float:
        """Share of the device that the instruction needs, 0 to 1."""


Known = Mapping[tuple[Kind, int, bool], InstructionUsage]
"""Memory and compute used while instructions run, by kind, stage, and True for recomputation.

An instruction that is missing here counts with the whole device and the recorded memory.
"""


@dataclass(frozen=True)
class Usage:
    """Use of the devices in one iteration of a run.

    Attributes:
        start_s, period_s: start of the iteration in the trace, and its length.
        held_bytes: by device, the maximum bytes in each column; shape (columns,). Only devices with recorded memory.
            If memory was recorded only in an earlier iteration, the bytes are from that one.
        computes: by device, the share of it that computes, 0 to 1, as the mean of each column; shape (columns,).
        collective: by device, the share of the iteration in which it takes part in a collective.
    """

    start_s: float
    period_s: float
    held_bytes: dict[int, np.ndarray]
    computes: dict[int, np.ndarray]
    collective: dict[int, float]

    def kept_bytes(self, device: int) -> float:
        """Minimum bytes of a device in the iteration.

        This is the memory of weights, optimizer state and constants.
        """
        return float(self.held_bytes[device].min())

    def peak_bytes(self, device: int) -> float:
        """Peak bytes of a device in the iteration."""
        return float(self.held_bytes[device].max())

    def above_bytes(self, device: int) -> np.ndarray:
        """Bytes above `kept_bytes` of a device, in each column."""
        above: np.ndarray = self.held_bytes[device] - self.kept_bytes(device)
        return above

    def valley_share(self, device: int) -> float:
        """Share of the iteration in which a device holds little memory (valley).

        In a valley, the bytes above `kept_bytes` are less than half of their peak.
        """
        above = self.above_bytes(device)
        return float((above < above.max() / 2).mean()) if above.max() > 0 else 1.0

    def compute_share(self, device: int) -> float:
        """Share of a device that computes, 0 to 1, as the mean over the iteration."""
        return float(self.computes[device].mean())


def usage(
    trace: Trace, known: Known | None = None, columns: int = COLUMNS, span: tuple[float, float] | None = None
) -> Usage:
    """Memory and compute that each device uses in a span of a trace.

    Arguments:
        known: memory and compute used while forwards and backwards run; empty for a measured trace.
        columns: number of equal time intervals of the result.
        span: start and end in seconds. By default, the iteration of the later half with the length closest to the
            median (the last of these); the whole trace if it has no two updates.
    """
    start_s, end_s = span or _usual(iterations(trace))
    edges = np.linspace(start_s, end_s, columns + 1)
    begin_s, until_s = _recorded(trace, (start_s, end_s))
    runs = _runs(trace, known or {}, begin_s, until_s)
    moments = np.linspace(begin_s, until_s, columns + 1)
    series = trace.memory if until_s > begin_s else {}
    held = {device: held_in(*_finer(own, runs.get(device, ())), moments) for device, own in series.items()}
    period_s = end_s - start_s
    begins_s = met(trace)
    computes, collective = {}, {}
    for device in trace.devices:
        own = trace.device == device
        computes[device] = _computes(trace, own & np.isin(trace.kind, _COMPUTES), known or {}, edges)
        moving = own & np.isin(trace.kind, _COLLECTIVES)
        starts, ends = joined(begins_s[moving], trace.end_s[moving])
        inside = np.minimum(ends, end_s) - np.maximum(starts, start_s)
        collective[device] = float(np.maximum(inside, 0.0).sum()) / period_s if period_s > 0 else 0.0
    return Usage(start_s, period_s, held, computes, collective)


def _usual(spans: list[tuple[float, float]]) -> tuple[float, float]:
    usual_s = float(np.median([end - start for start, end in spans]))
    return min(reversed(spans), key=lambda span: abs(span[1] - span[0] - usual_s))


def _recorded(trace: Trace, span: tuple[float, float]) -> tuple[float, float]:
    """(start, end) of a span with recorded memory; (0, 0) without one.

    This is the given span if memory was recorded in it, else the last iteration with recorded memory.
    """
    ends = [float(seconds[-1]) for seconds, _ in trace.memory.values()]
    if not ends or min(ends) >= span[0]:
        return span
    inside = [one for one in all_iterations(trace) if one[0] + REACHED * (one[1] - one[0]) <= min(ends)]
    return inside[-1] if inside else (0.0, 0.0)


def held_in(seconds: np.ndarray, held_bytes: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Maximum bytes held in each interval between two edges.

    Arguments:
        seconds, held_bytes: moments in the order of time, and bytes held from each on.
        edges: moments that separate the intervals, ascending; shape (columns + 1,).
    """
    after = np.searchsorted(seconds, edges, side="right")
    entering = np.where(after > 0, held_bytes[np.maximum(after - 1, 0)], held_bytes[0])
    high = entering[:-1].astype(float).copy()
    inside = np.searchsorted(edges, seconds, side="right") - 1
    mask = (inside >= 0) & (inside < len(high))
    np.maximum.at(high, inside[mask], held_bytes[mask])
    return high


_Run = tuple[float, float, InstructionUsage]  # an event's start, end, and usage inside


def _key(trace: Trace, event: int) -> tuple[Kind, int, bool]:
    again = " again " in trace.labels[trace.label[event]]
    return KINDS[trace.kind[event]], int(trace.stage[event]), again


def _runs(trace: Trace, known: Known, start_s: float, end_s: float) -> dict[int, list[_Run]]:
    """Events of a trace that overlap a time span and have an entry in `known`, by device.

    Returns:
        Start and end of each whole event in seconds, and its `InstructionUsage`.
    """
    found: dict[int, list[_Run]] = {}
    inside = np.isin(trace.kind, _COMPUTES) & (trace.start_s < end_s) & (trace.end_s > start_s)
    for event in np.flatnonzero(inside).tolist() if known else ():
        within = known.get(_key(trace, event))
        if within is not None:
            run = (float(trace.start_s[event]), float(trace.end_s[event]), within)
            found.setdefault(int(trace.device[event]), []).append(run)
    return found


def _finer(series: tuple[np.ndarray, np.ndarray], runs: Sequence[_Run]) -> tuple[np.ndarray, np.ndarray]:
    """A device's record of memory, refined by the known memory inside some events.

    Arguments:
        series: moments in seconds, and bytes held from each on.

    Returns:
        Moments in seconds, and bytes held from each moment on; with more moments than `series`.
    """
    seconds, held = series
    if not runs:
        return series
    steps = [start + np.concatenate(([0.0], one.until)) * (end - start) for start, end, one in runs]
    at = np.unique(np.concatenate((seconds, *steps)))
    # If a moment has several records, the last one holds from then on. The others held for no time.
    found = held[np.maximum(np.searchsorted(seconds, at, side="right") - 1, 0)].astype(float)
    for start, end, one in runs:
        first, last = np.searchsorted(at, (start, end))
        share = (at[first:last] - start) / (end - start) if end > start else np.zeros(last - first)
        piece = np.searchsorted(one.until, share, side="right")
        found[first:last] -= one.below_bytes[np.minimum(piece, len(one.below_bytes) - 1)]
    return at, found


def _computes(trace: Trace, own: np.ndarray, known: Known, edges: np.ndarray) -> np.ndarray:
    """Mean share of a device that computes in each interval between two edges.

    Arguments:
        own: mask of the device's compute events.
    """
    within = [known.get(_key(trace, event)) for event in np.flatnonzero(own).tolist()]
    shares = np.array([1.0 if one is None else one.demand for one in within])
    moments = np.concatenate((trace.start_s[own], trace.end_s[own]))
    order = np.argsort(moments, kind="stable")
    at = np.concatenate((edges[:1], moments[order], edges[-1:]))
    # Sum of the shares that compute between one moment and the next; never more than the whole device.
    rate = np.concatenate(([0.0], np.cumsum(np.concatenate((shares, -shares))[order])))
    rate = np.clip(rate, 0.0, 1.0)
    steps = np.maximum(np.diff(np.clip(at, edges[0], edges[-1])), 0.0)
    done = np.concatenate(([0.0], np.cumsum(rate * steps)))
    width = edges[1] - edges[0]
    found: np.ndarray = np.diff(np.interp(edges, np.clip(at, edges[0], edges[-1]), done))
    return np.clip(found / width, 0.0, 1.0) if width > 0 else np.zeros(len(edges) - 1)
