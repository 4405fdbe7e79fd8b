"""A job that trains in a moment, its plans, and a listener that does something to the run while it runs."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job_file import load_job
from hocket.runtime.engine.inline import run_inline
from hocket.runtime.progress.segments import SegmentCounts
from hocket.runtime.stage.executable import Executable
from hocket.training.callbacks.evaluation_info import EvaluationInfo
from hocket.training.worker.monitor.listener import RunSummary

# The process that runs it is a worker of a known rank: the name of its orders says which.
JOB = """
import os
import signal
import sys

import torch
from torch import nn

from hocket.profiling.job.job import Job

RANK = sys.argv[1].rpartition("-")[2][:1] if len(sys.argv) > 1 and "orders-" in sys.argv[1] else "-"
torch.manual_seed(0)


class Data:
    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(64, 6, generator=generator, dtype=torch.float64)
        self.y = torch.randint(0, 3, (64,), generator=generator)
        self.taken = 0

    def __len__(self):
        return 64

    def __getitem__(self, i):
        self.taken += 1
        {trouble}
        return self.x[i], self.y[i]


{start}
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 3)).double()
job = Job(model, nn.functional.cross_entropy, Data(), lambda p: torch.optim.{optimizer}, batch_size=8, name="tiny"{options})
"""
LAYERS = ("0", "1", "2", "3", "4", "5", "loss")


def write_job(
    folder: Path,
    start: str = "",
    trouble: str = "",
    optimizer: str = "Adam(p, lr=0.01)",
    name: str = "job.py",
    **options: Any,
) -> Path:
    """The job file; `start` runs when it is loaded, `trouble` for every sample; `options`: further ones of the job."""
    path = folder / name
    more = "".join(f", {key}={value!r}" for key, value in options.items())
    path.write_text(JOB.format(start=start, trouble=trouble, optimizer=optimizer, options=more))
    return path


def plan(strategy: str, *stages: tuple[int, tuple[int, ...]], **options: Any) -> Plan:
    """A plan of stages given as (number of layers, devices); none: two stages on two devices."""
    chosen = stages or ((3, (0,)), (4, (1,)))
    parts, at = [], 0
    for count, devices in chosen:
        parts.append(PlanStage(LAYERS[at : at + count], devices))
        at += count
    if strategy == "tick_tock":
        parts += [replace(part, wave=1) for part in parts]
    workers = len({device for _, devices in chosen for device in devices})
    cluster = Cluster("local", (Level("local", workers, 1e9),), "cpu-core")
    return Plan(strategy, "tiny", 8, 2, tuple(parts), cluster, options=options)


def reference(job: Path, chosen: Plan, steps: int) -> list[float]:
    """Loss of each step of an undisturbed run by the engine that defines the program's meaning, in this process."""
    captured = capture(load_job(job), chosen.microbatch_size)
    program = chosen.compile(captured)
    pace = SegmentCounts(program.admitted, program.stride, chosen.microbatches)
    result = run_inline(Executable(captured, chosen.layout(captured), program), pace.periods_for(steps))
    losses: dict[int, float] = {}
    for microbatch, loss, samples in result.losses:
        step = microbatch // chosen.microbatches
        losses[step] = losses.get(step, 0.0) + loss * samples
    return [losses[step] / chosen.batch_size for step in range(steps)]


class Recorder:
    """A listener that keeps what it hears, and acts once when a step has been trained or a note comes."""

    def __init__(self, at_step: int = -1, act: Callable[[], None] | None = None, at_note: str = "") -> None:
        self.at_step, self.at_note, self.act = at_step, at_note, act
        self.lines: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.evaluations: list[tuple[EvaluationInfo, int]] = []  # each with the number of steps heard before
        self.first = -1
        self.closed = False

    def started(self, first: int, steps: int, predicted_iteration_s: float | None, peak_step_s: float | None) -> None:
        """Where it begins."""
        self.first = first

    def step(self, line: dict[str, Any]) -> None:
        """Keep it; act if it is time."""
        self.lines.append(line)
        if line["step"] == self.at_step and self.act is not None:
            self.act()

    def evaluated(self, info: EvaluationInfo) -> None:
        """Keep it."""
        self.evaluations.append((info, len(self.lines)))

    def saved(self, step: int, path: str) -> None:
        """Keep it among the notes."""
        self.note(f"saved {path}")

    def note(self, text: str) -> None:
        """Keep it; act if it is the one."""
        self.notes.append(text)
        if self.at_note and text.startswith(self.at_note) and self.act is not None:
            self.at_note = ""
            self.act()

    def finished(self, summary: RunSummary) -> None:
        """The end."""

    def close(self) -> None:
        """Called however it ended."""
        self.closed = True

    @property
    def losses(self) -> list[float]:
        """Loss of each step."""
        return [line["loss"] for line in self.lines]


def worker_of(rank: int, parent: int | None = None) -> psutil.Process:
    """The process of one local worker."""
    return next(child for child in _workers_of(parent or os.getpid()) if child.name() == f"hocket-{rank}")


def workers_left() -> list[psutil.Process]:
    """Local workers that still run."""
    return _workers_of(os.getpid())


def _workers_of(parent: int) -> list[psutil.Process]:
    """Processes that what was started by this one calls its workers."""
    below = psutil.Process(parent).children(recursive=True)
    return [child for child in below if child.is_running() and child.name().startswith("hocket-")]
