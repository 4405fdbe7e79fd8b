"""Progress of long commands, on standard error."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hocket.printable import printable
from hocket.util.units import show_seconds

EVERY_S = 10.0


@contextmanager
def interruptible(doing: str, written: Path | None) -> Iterator[None]:
    """Context manager that says in the text of a KeyboardInterrupt what was interrupted, and what is there already.

    Arguments:
        doing: the interrupted work, such as "explaining the plan".
        written: file that was written before; None without one.

    Raises:
        KeyboardInterrupt: interrupted.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        where = f"; {written} was written before" if written else ""
        raise KeyboardInterrupt(f"interrupted while {doing}{where}") from stop


class Progress:
    """Context manager that shows progress, on standard error.

    It shows a bar on a terminal, or else prints a line every ten seconds. It shows nothing if `enabled` is false
    (--json). The with-statement yields the callback report(done, total, label), or None if nothing is shown.
    """

    def __init__(self, title: str, enabled: bool) -> None:
        self._shown: ProgressBar | ProgressLines | None = None
        if enabled:
            self._shown = ProgressBar(title) if sys.stderr.isatty() else ProgressLines(title, EVERY_S)

    def __enter__(self) -> Any:
        if self._shown is None:
            return None
        self._shown.start()
        return self._shown.report

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.stop()


class ProgressBar:
    """Progress bar on standard error."""

    def __init__(self, title: str) -> None:
        self._title = title

    def start(self) -> None:
        """Show the bar."""
        from rich.console import Console
        from rich.progress import Progress as RichBar

        self._bar = RichBar(console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(self._title, total=None)
        self._bar.start()

    def report(self, done: float, total: float, label: str) -> None:
        """Report progress: done of total (0 if unknown) and the current label."""
        if not total:
            self.tasks[0].total = None  # `update` would read None as "no change"
        self._bar.update(
            self._task, completed=done, total=total or None, description=printable(f"{self._title}: {label}")
        )

    @property
    def tasks(self) -> Any:
        """Tasks of rich's progress bar; there is one."""
        return self._bar.tasks

    def stop(self) -> None:
        """Remove the bar."""
        self._bar.stop()


class ProgressLines:
    """Progress as a line on standard error every `every_s` seconds.

    A command that takes less than `every_s` seconds prints nothing.
    """

    def __init__(self, title: str, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._title, self._every_s, self._clock = title, every_s, clock
        self._said: tuple[float, float, str] | None = None
        self._over = threading.Event()
        # A thread prints the lines, because a long step may not call `report` for a while.
        self._thread = threading.Thread(target=self._go_on, name="progress", daemon=True)

    def start(self) -> None:
        """Start the clock and the printing thread."""
        self._began_s = self._clock()
        self._thread.start()

    def report(self, done: float, total: float, label: str) -> None:
        """Report progress: done of total (0 if unknown) and the current label."""
        self._said = done, total, label

    def stop(self) -> None:
        """Stop printing; no line is printed after this call."""
        self._over.set()
        self._thread.join()

    def line(self) -> str:
        """Return the progress line, such as "planning: flush, 12% done after 10 s"."""
        after = f"after {show_seconds(self._clock() - self._began_s)}"
        if self._said is None:
            return f"{self._title}: {after}"
        done, total, label = self._said
        share = f"{done / total:.0%} done " if total else ""
        return f"{self._title}: {label}, {share}{after}"

    def _go_on(self) -> None:
        while not self._over.wait(self._every_s):
            print(printable(self.line()), file=sys.stderr, flush=True)
