"""Comparison of a predicted and a measured trace, in seconds and bytes.

Rules of this file: two traces in, rows out. Medians are over everything that each trace has, so that runs of different
lengths can be compared.
"""

from dataclasses import dataclass
from math import nan

import numpy as np

from hocket.program.instruction import Kind
from hocket.program.trace.error_parts import Parts, parts_of
from hocket.program.trace.trace import KINDS, Event, Trace
from hocket.program.trace.update_time import predicted_update_s, update_s

_Name = tuple[int, str, str]  # device, lane, name
_NOTHING = 1e-6  # relative size below which a percentage has no meaning


@dataclass(frozen=True)
class ComparedFigure:
    """One figure, predicted and measured, in seconds; in bytes if `what` says memory.

    Attributes:
        what: name of the figure, such as "update", "forward 1" (kind and stage), "device 0: backward 1 #7", or "memory
            of device 0".
        predicted, measured: the figures; nan if a trace has none.
        count: number of measured events with `measured` as their median.
    """

    what: str
    predicted: float
    measured: float
    count: int = 1

    @property
    def relative_error(self) -> float:
        """(predicted - measured) / measured; nan if one figure is negligible or unknown."""
        small, large = sorted((abs(self.predicted), abs(self.measured)))
        return (self.predicted - self.measured) / self.measured if small > large * _NOTHING else nan


@dataclass(frozen=True)
class Comparison:
    """A predicted and a measured trace, compared.

    Attributes:
        update: seconds between two updates of one stage, in the steady state.
        kinds: median seconds of each kind of instruction and stage.
        largest: the single instructions that differ most, in seconds.
        memory: peak bytes of each device that both traces know.
        only_predicted, only_measured: number of instructions that only one trace has, without the later ones.
        later_predicted, later_measured: number of instructions in this trace that come after all of their kind in the
            other trace, because this trace has more periods.
        parts: parts of the update's error (pace, waits for cores, model); None if a trace has no two updates of a
            stage.
    """

    update: ComparedFigure
    kinds: tuple[ComparedFigure, ...]
    largest: tuple[ComparedFigure, ...]
    memory: tuple[ComparedFigure, ...]
    only_predicted: int
    only_measured: int
    later_predicted: int = 0
    later_measured: int = 0
    parts: Parts | None = None

    @property
    def rows(self) -> tuple[ComparedFigure, ...]:
        """All rows of the comparison: update, kinds, memory, largest errors."""
        return (self.update, *self.kinds, *self.memory, *self.largest)


def compare(predicted: Trace, measured: Trace, largest: int = 10) -> Comparison:
    """Compare two traces of one program.

    Each tensor-parallel group of the measured trace counts as one device.

    Arguments:
        largest: number of single instructions to list.
    """
    measured = measured.by_group()
    ours, theirs = _by_name(predicted), _by_name(measured)
    both = [key for key in ours if key in theirs]
    pairs = [(ours[key], theirs[key]) for key in both]
    apart = sorted(pairs, key=lambda pair: (-abs(_seconds(pair[0]) - _seconds(pair[1])), pair[0].device, pair[0].name))
    singles = tuple(
        ComparedFigure(f"device {p.device}: {p.name}", _seconds(p), _seconds(m)) for p, m in apart[:largest]
    )
    peaks, held = predicted.peak_memory_bytes(), measured.peak_memory_bytes()
    memory = tuple(
        ComparedFigure(f"memory of device {d}", peaks[d], held[d]) for d in sorted(peaks.keys() & held.keys())
    )
    update = ComparedFigure("update", predicted_update_s(predicted), update_s(measured))
    later = (_later(ours, theirs), _later(theirs, ours))
    only = (len(ours) - len(both) - later[0], len(theirs) - len(both) - later[1])
    parts = parts_of(predicted, measured)
    return Comparison(update, _kinds(predicted, measured), singles, memory, *only, *later, parts)


def _later(events: dict[_Name, Event], others: dict[_Name, Event]) -> int:
    """Number of events with a higher index than all similar events of the other trace.

    Similar events have the same device, lane, kind and stage. An event without similar ones is not counted.

    Arguments:
        others: events of the other trace.
    """
    last: dict[tuple[int, str, Kind, int], int] = {}
    for e in others.values():
        place = (e.device, e.lane, e.kind, e.stage)
        last[place] = max(last.get(place, e.index), e.index)
    return sum(e.index > last.get((e.device, e.lane, e.kind, e.stage), e.index) for e in events.values())


def _seconds(event: Event) -> float:
    return event.end_s - event.start_s


def _by_name(trace: Trace) -> dict[_Name, Event]:
    return {(e.device, e.lane, e.name): e for e in trace.events}


def _kinds(predicted: Trace, measured: Trace) -> tuple[ComparedFigure, ...]:
    usual = [_usual(trace) for trace in (predicted, measured)]
    keys = sorted(usual[0].keys() | usual[1].keys(), key=lambda key: (KINDS.index(Kind(key[0])), key))
    none = (nan, 0)
    return tuple(
        ComparedFigure(
            f"{kind}{' again' if again else ''} {stage}", usual[0].get(key, none)[0], *usual[1].get(key, none)
        )
        for key in keys
        for kind, again, stage in (key,)
    )


def _usual(trace: Trace) -> dict[tuple[str, bool, int], tuple[float, int]]:
    """Median seconds and number of events by (kind, recomputation, stage).

    Medians are used because the first iterations of a run are slower than all others.
    """
    again = np.array([" again " in label for label in trace.labels], dtype=bool)
    group = np.stack([trace.kind, again[trace.label] if len(trace) else trace.kind, trace.stage], axis=1)
    found, which, counts = np.unique(group, axis=0, return_inverse=True, return_counts=True)
    seconds = trace.end_s - trace.start_s
    each = np.split(seconds[np.argsort(which.ravel(), kind="stable")], np.cumsum(counts)[:-1])
    return {
        (str(KINDS[kind]), bool(repeated), stage): (float(np.median(own)), len(own))
        for (kind, repeated, stage), own in zip(found.tolist(), each, strict=len(found) > 0)
    }
