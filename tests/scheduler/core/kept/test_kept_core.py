"""Commands of the core for drawn stories, equal to those that are kept beside this file, and the same after a replay.

Policies without a solver: their allocations are the same on every machine. After a change that is meant, write the
files again with --update-golden, and read the difference.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.errors import InputError
from hocket.scheduler.core.core import Core, Policy
from hocket.scheduler.core.events import (
    Command,
    Event,
    JobArrived,
    JobFailed,
    JobFinished,
    JobWithdrawn,
    PriceChanged,
    Progressed,
    Renew,
    RoundEnded,
    SharingMeasured,
    ThroughputMeasured,
    WorkersJoined,
    WorkersLost,
)
from hocket.scheduler.core.policy_by_name import policy_named
from hocket.scheduler.core.settings import Settings
from hocket.scheduler.journal.core_setup import Setup
from hocket.scheduler.journal.core_state import state_of
from hocket.scheduler.journal.journal import Journal, read
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.lease import Lease
from hocket.scheduler.model.worker_types import ClusterSpec, Placement, WorkerType
from tests.kept import check
from tests.scheduler.core.test_core import pairing
from tests.scheduler.helpers.drive import Driver, even

STORIES, EVENTS = 5, 45
POLICIES = ("even", "pairing", "fifo", "isolated", "gandiva", "allox", "shortest_job_first")
SHARING = ("pairing", "gandiva")


def policy(name: str) -> Policy:
    """A policy by its name, of the package or of the tests."""
    return {"even": even, "pairing": pairing}.get(name) or policy_named(name)


def settings(draw: random.Random) -> Settings:
    """Settings that differ from the defaults in about half of the fields."""
    told: dict[str, Any] = {
        "round_s": draw.choice((100.0, 360.0)),
        "recompute": draw.choice(("events", "rounds")),
        "recompute_after_s": draw.choice((0.0, 500.0)),
        "order": draw.choice(("ratio", "deficit")),
        "queue": draw.choice(("types", "global")),
        "shuffle": draw.random() < 0.5,
        "fill": draw.random() < 0.7,
        "newcomers": draw.choice(("fill", "wait")),
        "gifts": draw.choice(("free", "counted")),
        "hold_first": draw.random() < 0.5,
        "balance_after": draw.choice((None, 0.0, 1.0, 2.0)),
        "checkpoint_s": draw.choice((0.0, 5.0)),
        "restart_s": draw.choice((0.0, 7.0)),
        "attempts": draw.choice((1, 2, 5)),
        "seed": draw.randint(0, 9),
    }
    return Settings(**told)


def setup(draw: random.Random, sharing: bool) -> Setup:
    """A cluster of one to three types of workers, some with a column for workers on several servers."""
    types = tuple(
        WorkerType(f"type{k}", draw.randint(1, 6), draw.choice((1, 2, 4)), draw.uniform(0.2, 3))
        for k in range(draw.randint(1, 3))
    )
    columns = [Placement(k) for k in range(len(types))]
    columns += [Placement(k, False) for k in range(len(types)) if draw.random() < 0.4]
    spec, options, kept = ClusterSpec(types, tuple(columns)), settings(draw), None
    if sharing:
        kept = np.array([[[draw.choice((0.0, draw.uniform(0.4, 1))) for _ in columns] for _ in "ab"] for _ in "ab"])
        kept = np.where(kept.transpose(1, 0, 2) > 0, kept, 0.0)
    return Setup.of(Core(spec, even, options, kept, (), draw.choice((None, 20.0))), "its own")


class Story:
    """Events that a seed draws, some of which the core refuses."""

    def __init__(self, draw: random.Random, drive: Driver) -> None:
        self.draw, self.drive, self.arrived = draw, drive, 0

    def name(self) -> str:
        """A job, most often one that there is."""
        return self.draw.choice(self.drive.core.jobs or ("nobody",)) if self.draw.random() < 0.9 else "nobody"

    def steps(self) -> float:
        """Steps per second of a job, or 0 where it cannot run."""
        return self.draw.choice((0.0, self.draw.uniform(0.5, 8.0), self.draw.uniform(0.5, 8.0)))

    def job(self) -> Event:
        """A job that arrives; now and then it is invalid."""
        draw, self.arrived = self.draw, self.arrived + 1
        columns = len(self.drive.core.columns) + (draw.random() < 0.05)
        name = f"j{self.arrived}" if draw.random() < 0.95 else "j1"
        own = Job(
            name, "any", draw.uniform(1e3, 1e6), draw.choice((1, 1, 1, 2, 3)), self.drive.now_s, draw.choice((1.0, 2.5))
        )
        return JobArrived(own, tuple(self.steps() for _ in range(columns)), draw.choice((-1, *([0, 1] * 6), 2)))

    def progress(self) -> Event:
        """Remaining steps of the running jobs, with the time in which they ran."""
        draw, core = self.draw, self.drive.core
        names = [job for lease in core.leases for job in lease.jobs if job in core.jobs]
        left = [core.roster.remaining_steps[core.roster.find(job)] * draw.choice((1.0, 0.8, 0.5)) for job in names]
        busy = tuple(draw.uniform(0, 120) for _ in names) if draw.random() < 0.5 else ()
        return Progressed(tuple(names), tuple(map(float, left)), busy)

    def event(self) -> Event:
        """Something that happens, with a valid or an invalid number."""
        draw, core = self.draw, self.drive.core
        kind = draw.randrange(len(core.floor.types) + (draw.random() < 0.1))
        some = tuple(sorted(draw.sample(range(7), draw.randint(1, 3))))
        column, much = draw.randrange(len(core.columns) + 1), draw.choice((0.0, 0.5, 2.0, -1.0))
        return draw.choice(
            (
                self.job(),
                self.job(),
                self.job(),
                JobFinished(self.name()),
                JobFailed(self.name(), draw.choice(("", "out of memory"))),
                JobFailed(self.name()),
                JobWithdrawn(self.name()),
                WorkersLost(kind, some, draw.random() < 0.4),
                WorkersJoined(kind, some),
                PriceChanged(kind, abs(much)),
                ThroughputMeasured(self.name(), column, much),
                SharingMeasured(draw.randrange(3), draw.randrange(2), column, much, 0.7),
            )
        )

    def next(self) -> tuple[Event, float]:
        """The next event and its time: half of them end a round."""
        draw, drive = self.draw, self.drive
        if self.arrived < 7:
            return self.job(), drive.now_s
        wake_s = drive.wake_s if drive.wake_s is not None and drive.wake_s >= drive.now_s else None
        if wake_s is not None and draw.random() < 0.25:
            return self.progress(), draw.uniform(drive.now_s, wake_s)
        if wake_s is not None and draw.random() < 0.6:
            return RoundEnded(), wake_s
        until_s = drive.now_s + 50 if wake_s is None else wake_s
        return self.event(), draw.choice((drive.now_s, until_s, draw.uniform(drive.now_s, until_s)))


def shown(command: Command) -> str:
    """A command in few words; a lease by its number, its jobs and workers."""
    parts = [command.leases] if isinstance(command, Renew) else [*command]
    words = []
    for part in parts:
        if isinstance(part, Lease):
            words.append(
                f"{part.number} {'+'.join(part.jobs)} on {part.column} {part.workers} since {part.began_s:.6f}"
            )
        elif isinstance(command, Renew):
            words.append(str([lease.number for lease in part]))
        else:
            words.append(f"{part:.6f}" if isinstance(part, float) else str(part))
    return " ".join((type(command).__name__, *words))


def told(seed: int, name: str, folder: Path) -> list[str]:
    """A story under a policy, as lines; the core that its journal gives is equal."""
    draw = random.Random(f"{seed} {name}")
    path = folder / f"{seed} {name}.journal"
    lines, own = [], setup(draw, name in SHARING)
    with Journal.create(path, own, policy(name)) as journal:
        drive = Driver(journal.core)
        story = Story(draw, drive)
        lines.append(f"{seed}: {name}, {own.settings}")
        for _ in range(EVENTS):
            event, now_s = story.next()
            lines.append(f"  {now_s:.6f} {type(event).__name__}")
            try:
                answer = drive.tell(event, now_s)
            except InputError as error:
                lines.append(f"    refused: {error}")
                continue
            journal.record(event, now_s)
            lines += [f"    {shown(command)}" for command in answer]
        core = drive.core
        lines.append(
            f"  {core.rounds} rounds, {core.spent_usd:.9g} $, refused {core.refused}, {core.asking.calls} calls"
        )
        there = core.snapshot(core.now_s)
        lines += [f"  {active}" for active in there.jobs]
        lines.append(f"  {[(t.name, t.workers) for t in there.types]} placed {there.placed}")
        lines.append(f"  owed {np.round(core.book.due_s(), 6).tolist()}")
    assert state_of(read(path).replay(policy(name))) == state_of(core)
    return lines


@pytest.mark.parametrize("name", POLICIES)
def test_stories(name: str, tmp_path: Path, update_golden: bool) -> None:
    """Jobs come, fail and go, workers are lost and join, prices and measurements change, and rounds end."""
    lines = [line for seed in range(STORIES) for line in told(seed, name, tmp_path)]
    check(Path(__file__).with_name(f"{name}.txt"), "\n".join(lines) + "\n", update_golden)
