"""Progress: what a long command is at, on standard error."""

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from hocket.printable import printable
from hocket.util.units import show_seconds

EVERY_S = 10.0


class Progress:
    """Progress of a with-block: a bar on a terminal, else a line every ten seconds; silent for machines."""

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
    """A progress bar."""

    def __init__(self, title: str) -> None:
        self._title = title

    def start(self) -> None:
        """Show it."""
        from rich.console import Console
        from rich.progress import Progress as RichBar

        self._bar = RichBar(console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(self._title, total=None)
        self._bar.start()

    def report(self, done: float, total: float, label: str) -> None:
        """Report progress: done of total (0 if unknown) and the current label."""
        if not total:
            self.tasks[0].total = None  # which `update` takes for no change
        self._bar.update(
            self._task, completed=done, total=total or None, description=printable(f"{self._title}: {label}")
        )

    @property
    def tasks(self) -> Any:
        """The task of the progress bar, for rich."""
        return self._bar.tasks

    def stop(self) -> None:
        """Remove it."""
        self._bar.stop()


class ProgressLines:
    """A line every so often, for as long as it takes: what is short says nothing."""

    def __init__(self, title: str, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._title, self._every_s, self._clock = title, every_s, clock
        self._said: tuple[float, float, str] | None = None
        self._over = threading.Event()
        # Of its own accord: what takes long may not report for a while.
        self._thread = threading.Thread(target=self._go_on, name="progress", daemon=True)

    def start(self) -> None:
        """Begin to count the seconds."""
        self._began_s = self._clock()
        self._thread.start()

    def report(self, done: float, total: float, label: str) -> None:
        """Report progress: done of total (0 if unknown) and the current label."""
        self._said = done, total, label

    def stop(self) -> None:
        """No line comes after this."""
        self._over.set()
        self._thread.join()

    def line(self) -> str:
        """Line of progress, such as "planning: flush, 12 % done after 10 s"."""
        after = f"after {show_seconds(self._clock() - self._began_s)}"
        if self._said is None:
            return f"{self._title}: {after}"
        done, total, label = self._said
        share = f"{done / total:.0%} done " if total else ""
        return f"{self._title}: {label}, {share}{after}"

    def _go_on(self) -> None:
        while not self._over.wait(self._every_s):
            print(printable(self.line()), file=sys.stderr, flush=True)
