"""Telemetry of a worker: heartbeat and reports to the process that watches it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hocket.runtime.progress.heartbeat import Heartbeat

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Telemetry:
    """Signals of one worker to its watcher.

    Attributes:
        progress: progress page, with heartbeat and position in the program.
        report: sends an event as JSON data; collector.py describes the events.
    """

    progress: Heartbeat
    report: Report

    def note(self, text: str) -> None:
        """Report a text for people."""
        self.report({"event": "note", "text": text})
