"""Display of a run: JSON lines for machines, a progress bar for people.

Results go to standard output, everything else to standard error. This file does not import torch, and imports rich only
when it is used.
"""

import json
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO

from hocket.printable import printable
from hocket.training.callbacks.evaluation_info import EvaluationInfo
from hocket.training.worker.monitor.listener import Listener, RunSummary, evaluation_line
from hocket.training.worker.monitor.summary_table import evaluation_texts, shown_loss, summary_table
from hocket.util.units import show_number, show_seconds

_BAR_WIDTH = range(6, 41)
# Steps over which the pace is averaged, and steps before it is shown.
_WINDOW, _WARM = 20, 3
# Steps that come within these seconds count as one: under torchrun reports come in bursts, every quarter of a second.
_TOGETHER_S = 0.1
# A log gets this many lines over a run, and a further line after this many seconds without one.
_LINES, _QUIET_S = 20, 30.0


def listener(machine: bool) -> Listener:
    """Create the listener of a run.

    Arguments:
        machine: True for JSON lines on standard output. False for a progress bar on standard error, or for printed
            lines without a terminal.
    """
    if machine:
        return JsonLines(sys.stdout, sys.stderr)
    watched = sys.stdout.isatty() and sys.stderr.isatty()
    return TrainingBar(log=None if watched else sys.stdout)


class JsonLines:
    """Listener that prints a JSON line for each step and each evaluation, and a last JSON line with the summary.

    Notes for people are plain text.

    Arguments:
        out: stream of the JSON lines.
        notes: stream of the notes.
    """

    def __init__(self, out: TextIO, notes: TextIO) -> None:
        self._out, self._notes = out, notes

    def started(self, first: int, steps: int, predicted_iteration_s: float | None, peak_step_s: float | None) -> None:
        """Print nothing: only steps and evaluations have lines."""

    def step(self, line: dict[str, Any]) -> None:
        """Print a step as a JSON line."""
        print(json.dumps(line), file=self._out, flush=True)

    def evaluated(self, info: EvaluationInfo) -> None:
        """Print an evaluation as a JSON line."""
        print(json.dumps(evaluation_line(info)), file=self._out, flush=True)

    def saved(self, step: int, path: str) -> None:
        """Print the path of a saved checkpoint as a note, not as JSON."""
        self.note(f"saved {path}")

    def note(self, text: str) -> None:
        """Print a text for people on the stream of notes."""
        print(printable(f"hocket: {text}", lines=True), file=self._notes, flush=True)

    def finished(self, summary: RunSummary) -> None:
        """Print the summary as the last JSON line."""
        print(json.dumps(summary.line()), file=self._out, flush=True)

    def close(self) -> None:
        """Close nothing."""


class TrainingBar:
    """Progress bar with the loss, the learning rate, the gradient norm and the pace.

    After some steps it also shows the prediction beside the measurement. If standard error is not a terminal, there is
    no bar, and notes are not broken into lines. The stream `log` gets a line for the first step, the last step and
    some steps in between.

    The pace is the mean over the latest steps without a checkpoint or an evaluation, because the summary's median counts
    only training. The remaining time includes both.
    """

    def __init__(
        self, console: Any = None, clock: Callable[[], float] = time.monotonic, log: TextIO | None = None
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = console or Console(stderr=True, highlight=False)
        self._clock = clock
        # Seconds, steps, samples, tokens, and whether a checkpoint or an evaluation was made.
        self._took = deque[tuple[float, int, int, int, bool]](maxlen=_WINDOW - 1)
        self._last: tuple[float, int, int, int] | None = None
        self._tokens = 0
        self._saving = False
        self._log, self._logged_s, self._first = log, clock(), 0
        self._predicted_s: float | None = None
        self._peak_step_s: float | None = None
        self._done = self._steps = 0
        self._figures: tuple[str, ...] = ()
        self._evaluated: tuple[str, ...] = ()
        self._saved: int | None = None
        self._live = Live(console=self._console, get_renderable=self._shown, transient=True)

    def started(self, first: int, steps: int, predicted_iteration_s: float | None, peak_step_s: float | None) -> None:
        """Show the bar, if standard error is a terminal."""
        self._predicted_s, self._done, self._steps, self._first = predicted_iteration_s, first, steps, first
        self._peak_step_s = peak_step_s
        if self._console.is_terminal:
            self._live.start()

    def step(self, line: dict[str, Any]) -> None:
        """Move the bar to a step; print a line of the log, if one is due."""
        self._tokens += int(line.get("tokens", 0))
        now = self._clock(), int(line["step"]), int(line["samples"]), self._tokens
        last = self._last or now
        if self._last is not None and now[0] - last[0] >= _TOGETHER_S:
            more = now[1] - last[1], now[2] - last[2], now[3] - last[3]
            self._took.append((now[0] - last[0], *more, self._saving))
        if self._last is None or now[0] - last[0] >= _TOGETHER_S:
            self._last, self._saving = now, False
        self._done = line["step"]
        self._figures = self.figures(line)
        if self._log is not None:
            self._write(self._log)

    def _write(self, log: TextIO) -> None:
        """Print a line of the log, if a line is due."""
        now_s, each = self._clock(), max(1, (self._steps - self._first) // _LINES)
        ends = self._done in (self._first + 1, self._steps)
        if ends or self._done % each == 0 or now_s - self._logged_s >= _QUIET_S:
            self._logged_s = now_s
            print("  ".join([f"step {self._done}/{self._steps}", *self._figures]), file=log, flush=True)

    def evaluated(self, info: EvaluationInfo) -> None:
        """Show an evaluation in the bar, and print it into the log."""
        self._evaluated, self._saving = evaluation_texts(info), True
        if self._log is not None:
            print("  ".join([f"step {info.step}/{self._steps}", *self._evaluated]), file=self._log, flush=True)

    def saved(self, step: int, path: str) -> None:
        """Show the step of the newest checkpoint in the bar."""
        self._saved, self._saving = step, True

    def figures(self, line: dict[str, Any]) -> tuple[str, ...]:
        """Return the texts after the bar (loss, learning rate, pace, ...), the most important first.

        Learning rates of parameter groups that are equal are shown once.
        """
        parts = [f"loss {shown_loss(line['loss'])}"]
        if rates := dict.fromkeys(rate for rate in line.get("lr") or () if rate is not None):
            parts.append(f"lr {', '.join(f'{rate:.3g}' for rate in rates)}")
        if "gradient_norm" in line:
            norm = line["gradient_norm"]
            parts.append(f"gradient norm {'not finite' if norm is None else f'{norm:.3g}'}")
        if len(self._took) >= _WARM:
            steady = [took for took in self._took if not took[-1]] or list(self._took)
            steady_s, steps, samples, tokens = (sum(took[k] for took in steady) for k in range(4))
            all_s, all_steps = (sum(took[k] for took in self._took) for k in range(2))
            left_s = all_s / all_steps * (self._steps - self._done)
            parts += [f"{show_seconds(steady_s / steps)} a step", f"{_clock_of(left_s)} left"]
            if self._predicted_s:
                parts.append(f"{show_seconds(self._predicted_s)} predicted")
            parts.append(f"{show_number(samples / steady_s)} samples/s")
            if tokens:
                parts.append(f"{show_number(tokens / steady_s)} tokens/s")
            if self._peak_step_s:
                parts.append(f"MFU {self._peak_step_s * steps / steady_s:.1%}")
        return tuple(parts)

    def line(self, width: int) -> str:
        """Build the line of the bar, of at most `width` characters.

        If it does not fit, the bar is left out first, then the last texts. The number of steps is always shown.
        """
        head = f"{self._done}/{self._steps}"
        parts = [
            *self._figures[:1],
            *self._evaluated,
            *self._figures[1:],
            *([f"saved step {self._saved}"] if self._saved is not None else []),
        ]
        while parts and len("  ".join([head, *parts])) > width:
            parts.pop()
        behind = "  ".join([head, *parts])
        room = min(width - len(behind) - 1, _BAR_WIDTH[-1])
        if room not in _BAR_WIDTH:
            return behind
        full = room * self._done // max(self._steps, 1)
        done, left = ("#", "-") if self._console.options.ascii_only else ("━", "─")
        return f"{done * full}{left * (room - full)} {behind}"

    def note(self, text: str) -> None:
        """Print a note above the bar."""
        if self._console.is_terminal:
            text = textwrap.fill(text, self._console.width - 1, break_long_words=False, break_on_hyphens=False)
        self._say(text)

    def finished(self, summary: RunSummary) -> None:
        """Remove the bar and print the table of the summary."""
        self._live.stop()
        self._say(summary_table(summary))
        if (
            summary.checkpoint and (summary.losses or summary.iteration_s is not None) and not summary.stopped
        ):  # for a stopped run, a note has named the checkpoint
            self._say(summary.saved)

    def close(self) -> None:
        """Restore the terminal, however the run ended."""
        self._live.stop()

    def _say(self, text: str) -> None:
        self._console.print(printable(text, lines=True), markup=False, highlight=False, soft_wrap=True)

    def _shown(self) -> Any:
        from rich.text import Text

        return Text(self.line(self._console.width - 1), no_wrap=True, overflow="crop")


def _clock_of(duration_s: float) -> str:
    """Format a duration as on a clock: 0:01:30."""
    minutes, seconds = divmod(round(duration_s), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
