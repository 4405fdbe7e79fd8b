"""Train several plans of one job in turns, with the same local workers.

The pace of a shared machine varies by a fifth. If plans are trained one after the other, minutes apart, the comparison
shows the machine's pace, not the plans. In turns (A B C A B C ...), each turn has some steps. Between turns a
reference benchmark measures the machine's pace: forward and backward of one microbatch of the undivided model
(turns_worker.py). Trained weights are discarded, so there are no checkpoints. This file does not import torch.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from hocket.errors import InputError
from hocket.planning.plan import Plan
from hocket.profiling.job.job import Job
from hocket.profiling.job.job_file import check_job_file
from hocket.profiling.profile import ModelProfile
from hocket.training.launch.local import local_workers
from hocket.training.launch.torchrun_environment import under_torchrun
from hocket.training.launch.watcher import Watch
from hocket.training.launch.worker_spec import TurnsSpec
from hocket.training.worker.monitor.collector import Collector, Event
from hocket.training.worker.monitor.listener import Listener, Quiet, RunSummary
from hocket.training.worker.options import Options

STEPS = 10
"""Steps of a turn; several, because the first period of a turn is not measured."""


@dataclass(frozen=True)
class Turns:
    """Settings for training plans of one job in turns.

    Attributes:
        steps: steps of one turn, rounded up to a number at which the plan's program can end. An asynchronous pipeline is
            filled and drained in each turn; with fewer than about 8 steps, hardly any period between is measured.
        profile: profile of the undivided job on this machine, to measure the machine's pace between turns. None to
            measure no pace.
        traces: file for the measured trace of each plan; empty for no traces.
        own_batch: True to let each plan's batch size replace the job's.
    """

    steps: int = STEPS
    profile: ModelProfile | None = None
    traces: Sequence[str | Path] = ()
    own_batch: bool = False

    def spec(self, plans: Sequence[Plan]) -> TurnsSpec:
        """Return the settings for the workers of these plans.

        Raises:
            InputError: less than one step, or another number of traces than of plans.
        """
        if self.steps < 1:
            raise InputError("turn_steps", str(self.steps), ">= 1")
        if self.traces and len(self.traces) != len(plans):
            raise InputError("traces", f"{len(self.traces)}", f"{len(plans)}, one for each plan")
        paths = tuple(str(Path(path).absolute()) for path in self.traces) or ("",) * len(plans)
        if self.profile is None or any(plan.tensor > 1 for plan in plans):
            return TurnsSpec(self.steps, paths, self.own_batch)
        size = _benchmark_size(plans)
        return TurnsSpec(self.steps, paths, self.own_batch, size, benchmark_s(self.profile, size))


@dataclass(frozen=True)
class Turned:
    """Result of one plan that was trained in turns.

    Attributes:
        summary: summary as of a separate run. The iteration time is the median over all turns, without the first
            period of each.
        paces: measured time of the benchmark microbatch before and after this plan's turns, relative to its profiled
            time, by device. Waits for a CPU core are left out.
        stretches: factor by which waits for a CPU core lengthened the benchmark, by device. `paces` and `stretches`
            are empty if the pace was not measured.
    """

    summary: RunSummary
    paces: dict[int, float] = field(default_factory=dict)
    stretches: dict[int, float] = field(default_factory=dict)

    @property
    def pace(self) -> float | None:
        """Machine's pace during this plan's turns: mean of `paces`; None if not measured."""
        return fmean(self.paces.values()) if self.paces else None

    @property
    def slower(self) -> dict[int, float]:
        """Time of the benchmark relative to its profile, by device, with waits for cores."""
        return {device: pace * self.stretches[device] for device, pace in self.paces.items()}


def train_in_turns(
    job: Job | str | Path,
    plans: Sequence[Plan],
    *,
    steps: int,
    turns: Turns = Turns(),
    listener: Listener | None = None,
    on_turn: Callable[[int, int], None] | None = None,
    **options: Any,
) -> tuple[Turned, ...]:
    """Train plans in turns until each has trained `steps` steps.

    Arguments:
        plans: plans with the same number of workers.
        turns: steps of one turn, traces to write, and whether the machine's pace is measured between turns.
        listener: receives notes; by default nothing is shown.
        on_turn: called after a turn, with the index of its plan in `plans` and the steps that this plan has trained.
        options: options of workers, see `train`.

    Returns:
        Results in the order of `plans`.

    Raises:
        InputError: plans that do not fit the job or each other; or a call under torchrun.
        WorkerLost: a worker was lost.
    """
    if under_torchrun():
        raise InputError("turns", "torchrun", "a command that starts its own workers")
    if not plans:
        raise InputError("plans", "none", "at least one")
    spec, given = turns.spec(plans), Options(steps, **options)
    for name in ("checkpoint", "drawing", "host_link_bytes_per_s"):
        if getattr(given, name) is not None:
            raise InputError(name, str(getattr(given, name)), "None: training in turns does not support this option")
    made = job if isinstance(job, Job) else check_job_file(job)
    shown = listener or Quiet()
    collectors = _Collectors([Collector(plan, Quiet()) for plan in plans], on_turn)
    with (
        local_workers(made, plans, given, shown, spec) as workers,
        Watch(workers, collectors, given, shown) as watch,
    ):
        watch.run()
    return tuple(_turned(one, plan.worker_devices) for one, plan in zip(collectors.of, plans, strict=True))


def benchmark_s(profile: ModelProfile, size: int) -> float:
    """Return the profiled time of the benchmark between turns, in seconds.

    It is the time of a forward and a backward of one microbatch of the undivided model.

    Arguments:
        size: samples of the microbatch.
    """
    return float(profile.column("forward_s", size).sum() + profile.column("backward_s", size).sum())


def _benchmark_size(plans: Sequence[Plan]) -> int:
    """Return the microbatch size for the benchmark between turns, in samples.

    It is the microbatch size that most plans have; of equally frequent sizes, the smallest.
    """
    counts = Counter(plan.microbatch_size for plan in plans)
    return min(counts, key=lambda size: (-counts[size], size))


def _turned(collector: Collector, devices: tuple[int, ...]) -> Turned:
    told = {devices[rank]: event for rank, event in sorted(collector.done.items()) if "pace" in event}
    paces = {device: float(event["pace"]) for device, event in told.items()}
    return Turned(collector.summary(devices), paces, {d: float(event["stretch"]) for d, event in told.items()})


@dataclass
class _Collectors:
    """Receives the workers' reports on all plans.

    Attributes:
        of: collector of each plan.
        on_turn: called after a turn, with the index of its plan and the number of steps that this plan has trained.
        done: last report of each worker, by rank.
    """

    of: Sequence[Collector]
    on_turn: Callable[[int, int], None] | None = None
    done: dict[int, Event] = field(default_factory=dict)

    @property
    def halted(self) -> bool:
        """False: plans in turns have no callbacks that may fail."""
        return False

    def take(self, rank: int, event: Event) -> None:
        """Process one worker's report, on a plan or on its end."""
        if event["event"] == "turn":
            self.of[int(event["plan"])].take(rank, event["said"])
        elif event["event"] == "turned" and self.on_turn is not None:
            self.on_turn(int(event["plan"]), int(event["steps"]))
        elif event["event"] == "done":
            self.done[rank] = event

    def stopped_at_once(self, folder: str | None) -> str:
        """Return the message for a run that ends without waiting for its workers."""
        return "stopped; plans in turns are trained to be compared, and nothing was saved"
