"""Chrome trace-event JSON, which Perfetto opens.

Processes are devices, threads are lanes, counters are memory. An arrow leads from every send to its receive.

Rules of this file: viewers count microseconds. The exact seconds are written as well, so that reading a trace is the
inverse of writing it.
Source: the Trace Event Format of the Chromium project.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from hocket.errors import InputError
from hocket.program.instruction import Kind
from hocket.program.trace.trace import Event, Trace
from hocket.util.documents import parse_json, seems, seems_instead
from hocket.util.files import read_bytes, write_atomic

FORMAT = "hocket-trace-1"
_MOST = 2**53  # largest number of a device, lane, stage or instruction
_NEXT = "`hocket simulate PLAN --trace FILE` and `hocket train JOB PLAN --trace FILE` write one."
BACKGROUND = "background"
# Named colours of Chrome. Perfetto chooses its own colour by the event's name.
_COLOURS = {Kind.FORWARD: "thread_state_running", Kind.BACKWARD: "thread_state_runnable", Kind.STEP: "yellow"}


def trace_json(trace: Trace) -> str:
    """Convert a trace to text, one event on each line; `parse_trace` is the inverse."""
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in _events(trace))
    other = json.dumps({"format": FORMAT, "meta": dict(trace.meta)})
    return f'{{"displayTimeUnit":"ms","otherData":{other},"traceEvents":[\n{lines}\n]}}\n'


def save_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace atomically. Perfetto and chrome://tracing open it."""
    write_atomic(path, trace_json(trace))


def read_trace(path: str | Path) -> Trace:
    """Read a trace from a file that `save_trace` wrote.

    Raises:
        InputError: there is no such file, or `parse_trace` refuses its text.
    """
    return parse_trace(read_bytes(path), str(path))


def _background(trace: Trace, thread: int) -> Iterator[dict[str, Any]]:
    """Yield entries for a background job: one thread on each device.

    Arguments:
        thread: number of that thread.
    """
    for device, spans in sorted(trace.background.items()):
        yield {"ph": "M", "pid": device, "tid": thread, "name": "thread_name", "args": {"name": BACKGROUND}}
        yield {"ph": "M", "pid": device, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": thread}}
        for start_s, end_s in spans.tolist():
            shown = {"ph": "X", "pid": device, "tid": thread, "ts": start_s * 1e6, "dur": (end_s - start_s) * 1e6}
            yield {**shown, "name": BACKGROUND, "cat": BACKGROUND, "args": {"start_s": start_s, "end_s": end_s}}


def _events(trace: Trace) -> Iterator[dict[str, Any]]:
    lanes = sorted(set(trace.lanes), key=lambda lane: (lane[0], lane[1] != "compute", lane[1]))
    thread = {lane: number for number, lane in enumerate(lanes)}
    for device in trace.devices:
        yield {"ph": "M", "pid": device, "name": "process_name", "args": {"name": f"device {device}"}}
    for lane, number in thread.items():
        yield {"ph": "M", "pid": lane[0], "tid": number, "name": "thread_name", "args": {"name": lane[1]}}
        yield {"ph": "M", "pid": lane[0], "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}}
    sent: dict[tuple[int, int], list[Event]] = {}
    received: dict[tuple[int, int], list[Event]] = {}
    for e in trace.events:
        shown: dict[str, Any] = {
            "ph": "X",
            "pid": e.device,
            "tid": thread[(e.device, e.lane)],
            "ts": e.start_s * 1e6,
            "dur": (e.end_s - e.start_s) * 1e6,
            "name": e.name,
            "cat": str(e.kind),
            "args": {"stage": e.stage, "index": e.index, "start_s": e.start_s, "end_s": e.end_s},
        }
        if e.queued_s:
            shown["args"]["queued_s"] = e.queued_s
        if e.kind in _COLOURS:
            shown["cname"] = _COLOURS[e.kind]
        yield shown
        if e.kind is Kind.SEND and e.lane.startswith("send>"):
            sent.setdefault((e.device, int(e.lane[5:])), []).append(e)
        if e.kind is Kind.RECEIVE and e.lane.startswith("receive<"):
            received.setdefault((int(e.lane[8:]), e.device), []).append(e)
    number = 0
    for pair, sends in sorted(sent.items()):
        for send, receive in zip(sends, received.get(pair, ()), strict=False):
            number += 1
            for phase, e in (("s", send), ("f", receive)):
                yield {
                    "ph": phase,
                    "id": number,
                    "pid": e.device,
                    "tid": thread[(e.device, e.lane)],
                    "ts": (e.start_s if phase == "s" else e.end_s) * 1e6,
                    "name": "transfer",
                    "cat": "transfer",
                    **({"bp": "e"} if phase == "f" else {}),
                }
    yield from _background(trace, len(lanes))
    for device, (seconds, size) in trace.memory.items():
        for at_s, held in zip(seconds.tolist(), size.tolist(), strict=True):
            args = {"bytes": held}
            yield {"ph": "C", "pid": device, "name": "memory", "ts": at_s * 1e6, "args": args, "at_s": at_s}


def parse_trace(text: bytes | str, place: str = "trace") -> Trace:
    """Read a trace that `trace_json` wrote.

    Raises:
        InputError: the text is not JSON, or not such a trace. The message names the event.
    """
    try:
        data = parse_json(text, place)
    except InputError as error:
        instead = seems_instead(text)
        where, found = (place, instead) if instead else (error.place, error.found)
        raise InputError(where, found, f"a trace ({FORMAT}, JSON)", _NEXT) from None
    if not isinstance(data, dict) or "traceEvents" not in data:
        raise InputError(place, seems(data), f"a trace ({FORMAT})", _NEXT)
    entries = data["traceEvents"]
    if not isinstance(entries, list):
        raise InputError(f"{place}: traceEvents", repr(entries)[:80], "a list of events", _NEXT)
    other = data["otherData"] if isinstance(data.get("otherData"), dict) else {}
    form = other.get("format")
    if form != FORMAT:
        found = "the trace of another program" if form is None else repr(form)[:80]
        raise InputError(f"{place}: otherData.format", found, repr(FORMAT), _NEXT)
    if not isinstance(other.get("meta"), dict):
        raise InputError(f"{place}: otherData.meta", repr(other.get("meta"))[:80], "a mapping", _NEXT)
    lanes: dict[int, str] = {}
    events: list[Event] = []
    memory: dict[int, list[tuple[float, float]]] = {}
    beside: dict[int, list[tuple[float, float]]] = {}
    for number, entry in enumerate(entries):
        where = f"{place}: traceEvents.{number}"
        try:
            if entry["ph"] == "M" and entry["name"] == "thread_name":
                lanes[_whole(entry["tid"])] = str(entry["args"]["name"])
            elif entry["ph"] == "X":
                args = entry["args"]
                start_s, end_s = float(args["start_s"]), float(args["end_s"])
                device, lane = _whole(entry["pid"]), lanes[_whole(entry["tid"])]
                if entry["cat"] == BACKGROUND:
                    beside.setdefault(device, []).append((start_s, end_s))
                    continue
                kind, stage, index = Kind(entry["cat"]), _whole(args["stage"]), _whole(args["index"])
                queued_s = float(args.get("queued_s", 0.0))
                if not 0 <= queued_s < inf:
                    raise ValueError(f"{queued_s} s in a queue for a core")
                events.append(Event(device, lane, str(entry["name"]), kind, stage, index, start_s, end_s, queued_s))
            elif entry["ph"] == "C":
                memory.setdefault(_whole(entry["pid"]), []).append(
                    (float(entry["at_s"]), float(entry["args"]["bytes"]))
                )
        except (KeyError, TypeError, ValueError) as error:
            found = f"no key {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
            raise InputError(where, found, "an event that hocket wrote", _NEXT) from None
    background = {device: np.array(spans) for device, spans in beside.items()}
    return replace(Trace.of(events, memory, other["meta"]), background=background)


def _whole(value: Any) -> int:
    number = int(value)
    if abs(number) > _MOST:
        raise ValueError(f"{number} is too large for a device, lane, stage or instruction")
    return number
