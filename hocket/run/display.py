"""What a run shows: JSON lines for machines, a progress bar for people.

Rules of this file: results go to standard output, everything else to standard error. No torch; rich is loaded when it is used.
"""

import json
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO

from hocket.run.loop import Listener, Summary
from hocket.units import show_bytes, show_seconds

# Steps over which the pace is taken, and after how many of them it counts as warm.
_WINDOW, _WARM = 20, 3


def listener(machine: bool) -> Listener:
    """JSON lines on standard output, or a bar on standard error."""
    return Lines(sys.stdout, sys.stderr) if machine else Bar()


class Lines:
    """A JSON document a line: each step, and last the summary. Notes go to the other stream."""

    def __init__(self, out: TextIO, notes: TextIO) -> None:
        self._out, self._notes = out, notes

    def started(self, first: int, steps: int, predicted_iteration_s: float | None) -> None:
        """Nothing."""

    def step(self, line: dict[str, Any]) -> None:
        """One line."""
        print(json.dumps(line), file=self._out, flush=True)

    def note(self, text: str) -> None:
        """On the other stream."""
        print(f"hocket: {text}", file=self._notes, flush=True)

    def finished(self, summary: Summary) -> None:
        """The last line."""
        print(json.dumps(summary.line()), file=self._out, flush=True)

    def close(self) -> None:
        """Nothing is open."""


class Bar:
    """A progress bar with the loss, the pace, and the prediction beside the measurement once warm."""

    def __init__(self, console: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = console or Console(stderr=True, highlight=False)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, TextColumn("{task.fields[figures]}"), console=self._console)
        self._clock, self._times = clock, deque[tuple[float, int]](maxlen=_WINDOW)
        self._predicted_s: float | None = None

    def started(self, first: int, steps: int, predicted_iteration_s: float | None) -> None:
        """Show the bar."""
        self._predicted_s = predicted_iteration_s
        self._task = self._bar.add_task("training", total=steps, completed=first, figures="")
        self._bar.start()

    def step(self, line: dict[str, Any]) -> None:
        """Move the bar."""
        self._times.append((self._clock(), int(line["samples"])))
        self._bar.update(self._task, completed=line["step"], figures=self.figures(line))

    def figures(self, line: dict[str, Any]) -> str:
        """The text behind the bar."""
        loss = "not a number" if line["loss"] is None else f"{line['loss']:.4f}"
        parts = [f"loss {loss}"]
        if len(self._times) > _WARM:
            (start_s, before), (end_s, after) = self._times[0], self._times[-1]
            if end_s > start_s:
                parts.append(f"{(after - before) / (end_s - start_s):.4g} samples/s")
                each_s = (end_s - start_s) / (len(self._times) - 1)
                if self._predicted_s:
                    parts.append(f"{show_seconds(each_s)} a step, {show_seconds(self._predicted_s)} predicted")
        return "  ".join(parts)

    def note(self, text: str) -> None:
        """Above the bar."""
        self._bar.console.print(text, markup=False)

    def finished(self, summary: Summary) -> None:
        """Take the bar away and say how it went."""
        self._stop()
        self._bar.console.print(spoken(summary), markup=False)

    def _stop(self) -> None:
        # Asked only when it runs: rich ends a bar with an empty line where there is no terminal, begun or not.
        if self._bar.live.is_started:
            self._bar.stop()

    def close(self) -> None:
        """Leave the terminal as it was, however the run ended."""
        self._stop()


def spoken(summary: Summary) -> str:
    """A summary in one sentence."""
    if summary.iteration_s is None:
        return f"{summary.steps} steps trained"
    parts = [f"{summary.steps} steps trained", f"{show_seconds(summary.iteration_s)} an iteration"]
    if summary.predicted_iteration_s:
        off = summary.predicted_iteration_s / summary.iteration_s - 1
        parts.append(f"{show_seconds(summary.predicted_iteration_s)} predicted ({off:+.1%})")
    if summary.samples_per_s:
        parts.append(f"{summary.samples_per_s:.4g} samples/s")
    peaks = ", ".join(f"{d}: {show_bytes(size)}" for d, size in sorted(summary.peak_memory_bytes.items()))
    return "; ".join(parts) + (f"; peak memory by device {peaks}" if peaks else "")
