"""Trace: start and end of every instruction, and memory of every device.

A trace is simulated or measured.

Rules of this file: data is in columns, so that a million events need no objects. `events` is for people and small
traces.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from hocket.errors import InputError
from hocket.program.instruction import Kind

KINDS = tuple(Kind)
Lane = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Event:
    """One instruction with its start and end.

    Attributes:
        queued_s: seconds for which the instruction's thread waited for a core that other processes used, counted from
            the end of the thread's previous instruction. 0 if that was not measured, and in simulations.
    """

    device: int
    lane: str
    name: str
    kind: Kind
    stage: int
    index: int
    start_s: float
    end_s: float
    queued_s: float = 0.0


@dataclass(frozen=True, eq=False)
class Trace:
    """A frozen record of one run.

    Attributes:
        lanes: (device, name of the lane) by lane number.
        labels: names of instructions, with {} in place of the index, by label number.
        lane, kind, stage, index, label: numbers of each event; shape (events,). `kind` is a position in KINDS.
        start_s, end_s: times of each event, from one clock; shape (events,). A send and its receive start when both
            are ready.
        memory_device, memory_s, memory_bytes: a device, a moment, and the bytes that the device holds from then on;
            for each device in the order of time. A measured run has only its first iterations.
        meta: plain data for people and for `compare`, such as {"source": "simulated", "program": "flush straight 4"}.
            A measured run also has "peak_memory_bytes": {device as text: bytes}, "segments_s" and "left_out" (see
            write_trace).
        background: by device, start and end of each time span in which a background job had work there; shape (spans,
            2).
        queued_s: see Event; shape (events,), all zero if not given.
    """

    lanes: tuple[Lane, ...]
    labels: tuple[str, ...]
    lane: np.ndarray
    kind: np.ndarray
    stage: np.ndarray
    index: np.ndarray
    label: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray
    memory_device: np.ndarray
    memory_s: np.ndarray
    memory_bytes: np.ndarray
    meta: Mapping[str, Any] = field(default_factory=dict)
    background: Mapping[int, np.ndarray] = field(default_factory=dict)
    queued_s: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        if len(self.queued_s) != len(self.start_s):
            object.__setattr__(self, "queued_s", np.zeros(len(self.start_s)))

    @classmethod
    def of(
        cls,
        events: Iterable[Event],
        memory: Mapping[int, Iterable[tuple[float, float]]] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> "Trace":
        """Make a trace from events and memory.

        Arguments:
            memory: for each device, (seconds, bytes) in the order of time.

        Raises:
            InputError: an event ends before it starts.
        """
        lanes: dict[Lane, int] = {}
        labels: dict[str, int] = {}
        rows = []
        for e in events:
            if not e.end_s >= e.start_s:
                raise InputError(f"event {e.name}", f"from {e.start_s} s to {e.end_s} s", "an end not before the start")
            lane = lanes.setdefault((e.device, e.lane), len(lanes))
            label = labels.setdefault(e.name, len(labels))
            rows.append((lane, KINDS.index(e.kind), e.stage, e.index, label, e.start_s, e.end_s, e.queued_s))
        points = [(device, s, size) for device, series in sorted((memory or {}).items()) for s, size in series]
        integers = np.array([row[:5] for row in rows], dtype=np.int64).reshape(len(rows), 5)
        seconds = np.array([row[5:] for row in rows], dtype=float).reshape(len(rows), 3)
        return cls(
            lanes=tuple(lanes),
            labels=tuple(labels),
            lane=integers[:, 0],
            kind=integers[:, 1],
            stage=integers[:, 2],
            index=integers[:, 3],
            label=integers[:, 4],
            start_s=seconds[:, 0],
            end_s=seconds[:, 1],
            memory_device=np.array([p[0] for p in points], dtype=np.int64),
            memory_s=np.array([p[1] for p in points], dtype=float),
            memory_bytes=np.array([p[2] for p in points], dtype=float),
            meta=dict(meta or {}),
            queued_s=seconds[:, 2],
        )

    def __len__(self) -> int:
        return len(self.start_s)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        mine, theirs = self.memory, other.memory
        return (
            self.events == other.events
            and dict(self.meta) == dict(other.meta)
            and mine.keys() == theirs.keys()
            and all(np.array_equal(a, b) for d in mine for a, b in zip(mine[d], theirs[d], strict=True))
            and self.background.keys() == other.background.keys()
            and all(np.array_equal(spans, other.background[d]) for d, spans in self.background.items())
        )

    __hash__ = None  # type: ignore[assignment]

    def name(self, event: int) -> str:
        """Name of an event by its number; it equals the name of the program's instruction."""
        return self.labels[self.label[event]].replace("{}", str(self.index[event]))

    @cached_property
    def device(self) -> np.ndarray:
        """Device of each event; shape (events,)."""
        return np.array([device for device, _ in self.lanes], dtype=np.int64)[self.lane]

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """Indices of all devices of the trace, ascending."""
        return tuple(sorted({device for device, _ in self.lanes} | set(self.memory_device.tolist())))

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """All events, ordered by start, then device, lane and end."""
        names = [self.name(k) for k in range(len(self))]
        found = [
            Event(self.lanes[lane][0], self.lanes[lane][1], name, KINDS[kind], stage, index, start, end, queued)
            for lane, name, kind, stage, index, start, end, queued in zip(
                self.lane.tolist(),
                names,
                self.kind.tolist(),
                self.stage.tolist(),
                self.index.tolist(),
                self.start_s.tolist(),
                self.end_s.tolist(),
                self.queued_s.tolist(),
                strict=True,
            )
        ]
        return tuple(sorted(found, key=lambda e: (e.start_s, e.device, e.lane, e.end_s, e.name)))

    @cached_property
    def memory(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """For each device with a memory record: moments, and bytes held from each one on.

        Moments are in seconds, ascending.
        """
        found = {}
        for device in sorted(set(self.memory_device.tolist())):
            mask = self.memory_device == device
            found[device] = (self.memory_s[mask], self.memory_bytes[mask])
        return found

    @property
    def end(self) -> float:
        """Seconds at which the last event ends; 0 without events."""
        return float(self.end_s.max(initial=0.0))

    def peak_memory_bytes(self) -> dict[int, float]:
        """Peak memory of each device in bytes.

        The memory record of a measured run has samples between operations, so its peaks come from `meta`.
        """
        found = self.meta.get("peak_memory_bytes", {})
        told = found.items() if isinstance(found, Mapping) else ()
        peaks = {int(d): float(size) for d, size in told if str(d).isdecimal() and isinstance(size, int | float)}
        return {device: float(size.max()) for device, (_, size) in self.memory.items()} | peaks

    def by_group(self) -> "Trace":
        """The trace with each tensor-parallel group as one device.

        The device has the events of the group's first rank, and the largest peak memory of its ranks. A trace without
        groups is returned unchanged.
        """
        members = self.meta.get("tensor", 1)
        if not isinstance(members, int) or members < 2:
            return self
        events = [replace(e, device=e.device // members) for e in self.events if e.device % members == 0]
        peaks: dict[str, float] = {}
        for device, size in self.peak_memory_bytes().items():
            group = str(device // members)
            peaks[group] = max(size, peaks.get(group, 0.0))
        meta = {key: value for key, value in self.meta.items() if key != "tensor"}
        return Trace.of(events, meta=meta | {"peak_memory_bytes": peaks})

    @property
    def segments_s(self) -> tuple[float, ...]:
        """Start of each segment of a run in seconds, ascending.

        A pipeline that was drained for a checkpoint starts a new segment. Empty if the trace has one segment or no
        information.
        """
        found = self.meta.get("segments_s", ())
        moments = found if isinstance(found, list | tuple) else ()
        return tuple(sorted(float(s) for s in moments if isinstance(s, int | float)))

    def part(self, start_s: float, end_s: float) -> "Trace":
        """The events that start in a time span, and the memory until its end.

        The span includes `start_s` and excludes `end_s`.
        """
        events = (self.start_s >= start_s) & (self.start_s < end_s)
        memory = self.memory_s < end_s
        own = {
            name: getattr(self, name)[events]
            for name in ("lane", "kind", "stage", "index", "label", "start_s", "end_s", "queued_s")
        }
        held = {name: getattr(self, name)[memory] for name in ("memory_device", "memory_s", "memory_bytes")}
        return replace(self, **own, **held)
