"""Telemetry of a worker: heartbeat and reports to the process that watches it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hocket.profiling.job.job import Job
from hocket.profiling.job.learning_rate.learning_rates import shown_rates
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


def with_rates(report: Report, job: Job) -> Report:
    """Return a report function that adds to each loss the time, and the learning rates of its step."""
    rates = shown_rates(job)

    def add(event: dict[str, Any]) -> None:
        lr, told = rates(event["step"]), event | {"at_s": time.time()}
        report(told if lr is None else told | {"lr": lr})

    return add
