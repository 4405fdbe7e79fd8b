"""Measured: the trace of a run, put together from what every worker recorded."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hocket.errors import InputError
from hocket.program.instruction import Kind
from hocket.run.board import Board
from hocket.trace.trace import Event, Trace

# About 100 MB of text: what a viewer still opens.
_MAX_EVENTS = 500_000
_MEET = (Kind.SEND, Kind.RECEIVE)


def write_trace(
    path: Path, events: Iterable[Event], board: Board, meta: dict[str, Any], device: int, peak_memory_bytes: int
) -> None:
    """Write what all workers recorded as one trace; every worker calls this, and all see the same folder.

    The workers' clocks must be one, as on one machine; of several machines each device's times are only its own. Of very
    long runs the end is written.

    Arguments:
        meta: of the trace, the same on every worker; `peak_memory_bytes` comes to it: {device as text: bytes}.
        device, peak_memory_bytes: of this worker.

    Raises:
        InputError: it cannot be written; on every worker.
    """
    part = path.with_name(f".{path.name}.{board.rank}.part")
    last = sorted(events, key=lambda event: event.start_s)[-_MAX_EVENTS // board.workers :]
    problem = _saved(Trace.of(last, meta=meta), part)
    facts = board.share({"problem": problem, "device": device, "peak_memory_bytes": peak_memory_bytes})
    problems = [fact["problem"] for fact in facts]
    if board.rank == 0 and not any(problems):
        parts = [path.with_name(f".{path.name}.{rank}.part") for rank in range(board.workers)]
        found = [event for one in parts for event in Trace.read(one).events]
        start_s = min((event.start_s for event in found), default=0.0)
        moved = [replace(e, start_s=e.start_s - start_s, end_s=e.end_s - start_s) for e in met(found)]
        peaks = {str(fact["device"]): fact["peak_memory_bytes"] for fact in facts}
        problem = _saved(Trace.of(moved, meta=meta | {"peak_memory_bytes": peaks}), path)
    problems += [fact["problem"] for fact in board.share({"problem": problem})]
    part.unlink(missing_ok=True)
    if first := next(filter(None, problems), ""):
        raise InputError(f"trace {path}", first, "a place that can be written")


def met(events: Iterable[Event]) -> list[Event]:
    """The events, with every send and its receive starting when both were ready, as in a simulated trace.

    A worker records when it began to wait for the other; that wait is no transfer. Needs one clock for all workers.
    """
    events = list(events)
    began: dict[str, float] = {}
    for event in events:
        if event.kind in _MEET:
            what = event.name.partition(" ")[2]
            began[what] = max(began.get(what, event.start_s), event.start_s)
    return [
        replace(event, start_s=min(event.end_s, began[event.name.partition(" ")[2]])) if event.kind in _MEET else event
        for event in events
    ]


def _saved(trace: Trace, path: Path) -> str:
    try:
        trace.save(path)
    except InputError as error:
        return error.found
    return ""
