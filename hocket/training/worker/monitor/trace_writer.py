"""Trace of a run, merged from the records of all workers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hocket.errors import InputError
from hocket.program.instruction import Kind
from hocket.program.trace.chrome import read_trace, save_trace
from hocket.program.trace.trace import Event, Trace
from hocket.runtime.kv_exchange import KVExchange
from hocket.runtime.progress.recording import Recording

# About 100 MB of text, which a trace viewer can still open.
MAX_EVENTS = 500_000
_MEET = (Kind.SEND, Kind.RECEIVE)


def write_trace(
    path: Path,
    recording: Recording,
    board: KVExchange,
    meta: dict[str, Any],
    peak_memory_bytes: int,
    memory: Sequence[tuple[float, float]] = (),
) -> None:
    """Write the records of all workers as one trace.

    Every worker calls this, and all workers see the same folder. The workers must share a clock, as on one machine.
    With several machines, times of different devices cannot be compared. Only the end of a very long run is written.

    Arguments:
        recording: this worker's events.
        meta: metadata of the trace, the same on every worker (`tensor` is the size of tensor-parallel groups). The
            function adds `peak_memory_bytes` ({device as text: bytes}), `segments_s` (begins of segments, if there are
            several) and `left_out` (number of older events that were dropped, if any).
        peak_memory_bytes: this worker's peak memory.
        memory: (seconds, bytes) of this worker's memory, while it was observed.

    Raises:
        InputError: the trace cannot be written. Every worker raises the same error.
    """
    part, device = path.with_name(f".{path.name}.{board.rank}.part"), recording.device
    problem = _saved(Trace.of(recording.events, {device: memory} if memory else {}), part)
    facts = board.share(
        {
            "problem": problem,
            "device": device,
            "peak_memory_bytes": peak_memory_bytes,
            "segments_s": recording.segments_s,
            "left_out": recording.left_out,
        }
    )
    problems = [fact["problem"] for fact in facts]
    if board.rank == 0 and not any(problems):
        parts = [path.with_name(f".{path.name}.{rank}.part") for rank in range(board.workers)]
        traces = [read_trace(one) for one in parts]
        found = [event for one in traces for event in one.events]
        start_s = min((event.start_s for event in found), default=0.0)
        members = int(meta.get("tensor", 1))
        moved = [replace(e, start_s=e.start_s - start_s, end_s=e.end_s - start_s) for e in met(found, members)]
        held = {
            d: [
                (at_s - start_s, size)
                for at_s, size in zip(*(row.tolist() for row in series), strict=True)
                if at_s >= start_s
            ]
            for one in traces
            for d, series in one.memory.items()
        }
        held = {d: series for d, series in held.items() if series}
        problem = _saved(Trace.of(moved, held, meta | _told(facts, start_s)), path)
    problems += [fact["problem"] for fact in board.share({"problem": problem})]
    part.unlink(missing_ok=True)
    if first := next(filter(None, problems), ""):
        raise InputError(f"trace {path}", first, "a writable path")


def _told(facts: Sequence[Mapping[str, Any]], start_s: float) -> dict[str, Any]:
    """Build the metadata of the whole trace from the workers' facts.

    Arguments:
        facts: metadata of each worker.
        start_s: begin of the trace on the workers' clock, in seconds.
    """
    found: dict[str, Any] = {"peak_memory_bytes": {str(fact["device"]): fact["peak_memory_bytes"] for fact in facts}}
    begun = [min(each) for each in zip(*(fact["segments_s"] for fact in facts), strict=True)]
    # If the first events of a segment were dropped, it begins with the trace. Segments before it are not in the trace.
    segments_s = sorted({max(0.0, at_s - start_s) for at_s in begun})
    if len(segments_s) > 1:
        found["segments_s"] = segments_s
    if left_out := sum(fact["left_out"] for fact in facts):
        found["left_out"] = left_out
    return found


def met(events: Iterable[Event], members: int = 1) -> list[Event]:
    """Adjust the times of transfers to those of a simulated trace.

    In a simulated trace, send and receive run at the same time, when both sides and lanes are free. A worker records
    the post of a transfer, and for a receive the time at which it noticed the completion. So the recorded time includes
    waits for the other side and for the message before. These waits are removed. All workers must share a clock.

    Arguments:
        members: size of tensor-parallel groups. Ranks with the same number (device % members) exchange messages.
    """
    events = list(events)
    times: dict[tuple[int, str], tuple[float, float]] = {}

    def what_of(event: Event) -> tuple[int, str]:
        return event.device % members, event.name.partition(" ")[2]

    for event in events:
        if event.kind in _MEET:
            what = what_of(event)
            start_s, end_s = times.get(what, (event.start_s, event.end_s))
            times[what] = max(start_s, event.start_s), min(end_s, event.end_s)
    free_s: dict[tuple[int, str], float] = {}
    found = list(events)
    for place in sorted(range(len(events)), key=lambda place: events[place].start_s):
        event = events[place]
        if event.kind in _MEET:
            start_s, end_s = times[what_of(event)]
            lane = event.device, event.lane
            start_s = min(end_s, max(start_s, free_s.get(lane, start_s)))
            free_s[lane] = end_s
            found[place] = replace(event, start_s=start_s, end_s=end_s)
    return found


def _saved(trace: Trace, path: Path) -> str:
    try:
        save_trace(trace, path)
    except InputError as error:
        return error.found
    return ""
