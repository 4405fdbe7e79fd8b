"""Measured: the trace of a run, put together from what every worker recorded."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hocket.errors import InputError
from hocket.program.instruction import Kind
from hocket.program.trace.trace import Event, Trace
from hocket.runtime.kv_exchange import KVExchange
from hocket.runtime.progress.recording import Recording

# About 100 MB of text: what a viewer still opens.
MAX_EVENTS = 500_000
_MEET = (Kind.SEND, Kind.RECEIVE)


def write_trace(
    path: Path,
    recording: Recording,
    board: KVExchange,
    meta: dict[str, Any],
    device: int,
    peak_memory_bytes: int,
    memory: Sequence[tuple[float, float]] = (),
) -> None:
    """Write the records of all workers as one trace.

    Every worker calls this, and all see the same folder.

    The workers' clocks must be one, as on one machine; of several machines each device's times are only its own. Of
    very long runs the end is written.

    Arguments:
        meta: of the trace, the same on every worker (`tensor`: members of a tensor-parallel group); to it come `peak_memory_bytes` ({device as text: bytes}), of a run with
            several segments `segments_s` (when each began), of a very long one `left_out` (how many older events are not here).
        device, peak_memory_bytes: of this worker. memory: (seconds, bytes) of what it held, as far as it was looked at.

    Raises:
        InputError: it cannot be written; on every worker.
    """
    part = path.with_name(f".{path.name}.{board.rank}.part")
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
        traces = [Trace.read(one) for one in parts]
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
    """Metadata of the whole trace from the workers' facts.

    The trace begins at `start_s` on their clock.
    """
    found: dict[str, Any] = {"peak_memory_bytes": {str(fact["device"]): fact["peak_memory_bytes"] for fact in facts}}
    begun = [min(each) for each in zip(*(fact["segments_s"] for fact in facts), strict=True)]
    # The one whose first events are not here begins with the trace; those before it are not here at all.
    segments_s = sorted({max(0.0, at_s - start_s) for at_s in begun})
    if len(segments_s) > 1:
        found["segments_s"] = segments_s
    if left_out := sum(fact["left_out"] for fact in facts):
        found["left_out"] = left_out
    return found


def met(events: Iterable[Event], members: int = 1) -> list[Event]:
    """Events with transfers as in a simulated trace.

    Send and receive are together, when both sides and lanes are free.

    A worker records when it posted a transfer, and of a receive when it found that it was over: the wait for the other side,
    and for the message before, is no transfer. Needs one clock for all workers.

    Arguments:
        members: of a tensor-parallel group; those of one number (device % members) send to each other.
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
        trace.save(path)
    except InputError as error:
        return error.found
    return ""
