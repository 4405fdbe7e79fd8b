"""Train: the way in. Alone it starts local workers and watches them (local.py); under `torchrun` it joins (torchrun.py).

Rules of this file: no torch, so that the process that watches stays small and starts at once. What people and machines see
of a run goes through a Listener (listener.py; display.py has two).
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any, ClassVar, Literal

from hocket.errors import HocketError, InputError, nearest
from hocket.hardware.link_sums import LinkSums
from hocket.planning.plan import Plan, Predicted
from hocket.profiling.job.job import Job, check_job_file, refuse_in_job_file
from hocket.runtime.calibrate.buckets.random_buckets import BucketSampling
from hocket.runtime.checkpoint.resume_errors import no_checkpoint
from hocket.runtime.launch.torchrun_environment import check_meeting, first_speaks, number_in
from hocket.runtime.worker.monitor.listener import Listener, Quiet, RunSummary
from hocket.util.files import check_folder_to_write, place_to_write
from hocket.util.units import given_rate, show_seconds

DEVICES = ("auto", "cpu", "cuda")
ON_NAN = ("stop", "skip", "go")
# Exit code of a run that was asked to stop, saved or not.
INTERRUPTED = 130
# Swaps that take less than their link lets them by this factor did not go over it.
_QUICKER = 1.5
# Predictions of one plan that differ by less are one prediction, written and read.
_SAME = 1e-6
_MAX_THREADS = 1024  # of a worker: with some more no library can start them


@dataclass(frozen=True)
class Options:
    """How to run; every field can be written as JSON.

    Attributes:
        steps: train until so many steps are done in all, those before a resume included.
        checkpoint: folder of checkpoints; every: steps between two of them (None: a tenth of what is to do), rounded up to
            what the program can express; keep: how many of the newest stay.
        resume: True: go on from the newest whole checkpoint, of which there must be one. "auto": start at step 0 where the folder has no
            checkpoint (damaged ones count: where there are only such, neither goes on).
        on_nan: what a loss or gradient that is nan or infinite does: "stop" ends the run, with the place where it arose; "skip" leaves
            the update out on all devices; "go" goes on, with one warning. Weights that are not finite are never saved.
        device: where tensors live: auto (as the plan's cluster says), cpu or cuda.
        threads: of each worker on a CPU; pin: keep each local worker on
            cores of its own; unasked where they need more than half of the cores.
        silence_s: a worker whose heart has not beaten for so long is lost; stall_s: so are workers that all have not
            moved to another instruction for so long.
        trace: file for the measured trace.
        drawing: train with buckets and threads drawn at random instead, and leave what was noted in the file `notes` (run.py).
        batch_size: of the job instead of its own, where what is trained is thrown away (measure_waves.py).
        debug: show the whole traceback of a worker's error, and not only the frames of the job's own code.
        host_link_bytes_per_s: of a machine, each way: swaps of all its workers together wait as if its link to its devices were no
            faster (host_link.py).
    """

    steps: int
    checkpoint: str | None = None
    every: int | None = None
    keep: int = 3
    resume: bool | Literal["auto"] = False
    on_nan: str = "stop"
    device: str = "auto"
    threads: int = 1
    pin: bool | None = None
    silence_s: float = 60.0
    stall_s: float = 1800.0
    trace: str | None = None
    drawing: BucketSampling | None = None
    notes: str | None = None
    batch_size: int | None = None
    debug: bool = False
    host_link_bytes_per_s: float | None = None

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        for name in ("steps", "keep", "threads"):
            if getattr(self, name) < 1:
                raise InputError(name, str(getattr(self, name)), ">= 1")
        if self.threads > _MAX_THREADS:
            raise InputError("threads", str(self.threads), f"at most {_MAX_THREADS}")
        if self.every is not None and self.every < 1:
            raise InputError("every", str(self.every), ">= 1 step")
        if self.every is not None and self.checkpoint is None:
            raise InputError("every", str(self.every), "a folder for checkpoints", "Give --checkpoint DIR as well.")
        if self.resume not in (True, False, "auto"):
            raise InputError("resume", repr(self.resume), "true, false or auto", nearest(str(self.resume), ("auto",)))
        if self.resume and self.checkpoint is None:
            raise InputError("resume", "no folder", "the folder of the checkpoints", "Give --checkpoint DIR as well.")
        if self.on_nan not in ON_NAN:
            raise InputError("on_nan", repr(self.on_nan), f"one of {', '.join(ON_NAN)}", nearest(self.on_nan, ON_NAN))
        if self.device not in DEVICES:
            raise InputError("device", repr(self.device), f"one of {', '.join(DEVICES)}", nearest(self.device, DEVICES))
        if self.host_link_bytes_per_s is not None and not self.host_link_bytes_per_s > 0:
            raise InputError("host_link_bytes_per_s", str(self.host_link_bytes_per_s), "> 0 bytes a second")
        for name in ("silence_s", "stall_s"):
            if not getattr(self, name) > 0:
                raise InputError(name, str(getattr(self, name)), "> 0 seconds")


def train(
    job: Job | str | Path,
    plan: Plan | str | Path,
    *,
    steps: int,
    on_step: Callable[[dict[str, Any]], None] | None = None,
    listener: Listener | None = None,
    **options: Any,
) -> RunSummary:
    """Train a job as a plan says.

    Arguments:
        job: a job, or the path of a job file. Local workers make a job again (see `hocket.profiling.job.origin`): it must stand at the
            top of a file, or be returned by a function without arguments. Under `torchrun` this process is a worker itself.
        plan: a plan or its file.
        steps, options: see Options.
        on_step: called with each step's line, where no listener is given.

    Raises:
        InputError: what was given does not fit: job, plan, number of workers, checkpoints, a full disk.
        SystemExit: under `torchrun` with another number of workers than the plan's, on all but the first, which raises.
        WorkerLost: a worker died, failed or went silent; the message says where it stood.
        KeyboardInterrupt: interrupted twice, or without a folder for checkpoints; its text says after which step. (Interrupted
            once, with such a folder, a run saves and returns a summary with `stopped`.)
    """
    refuse_in_job_file("hocket.train")
    check_order(job, plan)
    given = _options(steps, options)
    path = None if isinstance(plan, Plan) else Path(plan).resolve()
    place = "plan" if isinstance(plan, Plan) else str(plan)
    if not isinstance(plan, Plan):
        plan = Plan.read(plan)
    listener = listener or Quiet(on_step)
    try:
        summary = run_workers(job, plan, path.parent if path else None, given, listener, place)
        told = unlike_host_link(plan, summary.swaps)
        if told and shows_the_run():
            listener.note(told)
        if path is not None and shows_the_run():
            _keep(plan, path, summary, listener)
            _account(plan, path, given, listener)
        return summary
    finally:
        listener.close()


def check_order(job: Job | str | Path, plan: Plan | str | Path, command: str = "train") -> None:
    """Refuse a plan where the job belongs, and the job where the plan does.

    Raises:
        InputError: with the other order, of this command.
    """
    if isinstance(job, Job) or isinstance(plan, Plan):
        return
    if Path(plan).suffix == ".py" and Path(job).suffix in (".yaml", ".yml"):
        step = f"The other way round: hocket {command} {plan} {job}"
        raise InputError(command, f"{job} as the job and {plan} as the plan", "a job, then a plan", step)


def run_workers(
    job: Job | str | Path,
    plan: Plan,
    folder: Path | None,
    options: Options,
    listener: Listener,
    place: str = "plan",
) -> RunSummary:
    """Be one of torchrun's workers, or start local ones and watch them.

    Arguments:
        folder: of the plan's file; None: its profile is not known. place: of the plan, for errors.

    Raises:
        InputError: `hocket check` refuses the plan, or workers and plan do not fit.
    """
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        with first_speaks():
            check_workers(devices_of(plan), number_in("WORLD_SIZE"))
            plan = checked(plan, folder, place)
        check_meeting()
        from hocket.runtime.launch.torchrun import join

        return join(job, plan, folder, options, listener)
    if not isinstance(job, Job):
        job = check_job_file(job)
    from hocket.runtime.launch.local import launch

    return launch(job, checked(plan, folder, place), folder, options, listener)


def checked(plan: Plan, folder: Path | None, place: str = "plan") -> Plan:
    """Refuse before any worker starts a plan that `hocket check` refuses; return it with the bytes by which it swaps.

    Where its profile is not at hand the workers ask what they can by the plan's own figures.

    Arguments:
        folder: of the plan's file; None: its profile is not known. place: of the plan, for errors.

    Raises:
        InputError: as `hocket.planning.load.validate`; or the profile is another one than the plan was made for.
    """
    from hocket.planning.load import opened, validate
    from hocket.planning.predict.predict import profile_of_group
    from hocket.planning.swapping.budgets import completed

    if folder is None or not plan.profile or not (folder / plan.profile).exists():
        return plan
    known = opened(plan, folder, place)
    validate(known)
    return completed(plan, profile_of_group(plan, known.profile))


def _keep(plan: Plan, path: Path, summary: RunSummary, listener: Listener) -> None:
    """Keep beside the plan what its run took, for the next one, or say why not."""
    if summary.iteration_s is None or not plan.profile:
        return
    from hocket.planning.load import opened
    from hocket.planning.predict.feedback import beside, check_like, learned_from

    peaks = {device: float(size) for device, size in summary.peak_memory_bytes.items()}
    try:
        profile = opened(plan, path.parent, path.name).profile
        check_like(plan, profile, summary.warm_steps, summary.optimizer, summary.dtype, summary.device_types)
        found = learned_from(plan, profile, summary.iteration_s, peaks, len(summary.losses), summary.swaps)
        found.save(beside(path))
    except InputError as error:  # whatever it is, it is no reason to fail after training
        listener.note(f"not kept for the next plan: {error.found}; expected {error.expected}")
        return
    listener.note(f"kept in {beside(path).name} for the next plan of this profile and cluster")


def unlike_host_link(plan: Plan, swaps: Mapping[int, LinkSums]) -> str:
    """That a run's swaps took less than the link which the plan's cluster says lets them, and what to give so that they wait for it.

    Arguments:
        swaps: what they took, by device of the plan.
    """
    link, took = plan.cluster.host_link, sum(swaps.values(), LinkSums())
    if link is None or took.seconds * _QUICKER >= took.size_bytes / link.bandwidth_bytes_per_s:
        return ""
    expected = given_rate(link.bandwidth_bytes_per_s)
    had = given_rate(took.size_bytes / took.seconds) if took.seconds > 0 else "more"
    return (
        f"the plan is predicted with a link to the host of {expected} (host_link of its cluster), but swaps had {had} here: "
        f"measured and predicted are not of one machine. --host-link {expected} lets them wait as that link would"
    )


def _account(plan: Plan, path: Path, options: Options, listener: Listener) -> None:
    """Say what a run that was traced has used of devices beside what was planned, where the plan lends those that a stage leaves out."""
    from hocket.planning.burst.amplification import amplification_of
    from hocket.planning.load import opened
    from hocket.program.trace.trace import Trace
    from hocket.strategies.base.strategy import yields_idle

    if options.trace is None or not plan.profile or not yields_idle(plan.strategy):
        return
    try:
        profile = opened(plan, path.parent, path.name).profile
        listener.note(f"amplification: {amplification_of(plan, profile, Trace.read(options.trace)).text}")
    except InputError as error:  # whatever it is, it is no reason to fail after training
        listener.note(f"amplification: not known; {error}")


def check_workers(devices: tuple[int, ...], workers: int) -> None:
    """One worker for each device of the plan, or an InputError."""
    if workers != len(devices):
        hint = f"Start {len(devices)} workers, for example torchrun --nproc-per-node {len(devices)}, or plan for {workers}."
        raise InputError("workers", str(workers), f"{len(devices)}, one for each device of the plan", hint)


def predicted_now(plan: Plan, folder: Path | None, listener: Listener) -> Predicted | None:
    """What the plan as it stands does, by the profile that it names, if that is at hand; else what the plan says.

    Nothing, if groups were made of the devices that it was planned for: what it says is not of them.

    Arguments:
        folder: of the plan's file; None: its profile is not known.
    """
    if folder is None or not plan.profile:
        return plan.predicted
    from hocket.planning.load import opened

    then = plan.predicted
    try:
        known = opened(plan, folder)
        if known.updates.differences and (told := known.profile.loss_parts):
            listener.note(f"as the job was profiled, {told}")
        now = known.predicted
    except HocketError as error:  # no profile, or another one: that is no reason not to train
        if not isinstance(error, InputError) or error.place.rpartition(": ")[2] != "tensor":
            return then
        listener.note("nothing is predicted: the plan's groups are of another width than the devices of its profile")
        return None
    if then is None or isclose(now.iteration_s, then.iteration_s, rel_tol=_SAME):
        return then or now
    listener.note(
        f"the plan was changed since it was predicted: {show_seconds(now.iteration_s)} an iteration as it stands, "
        f"not {show_seconds(then.iteration_s)}"
    )
    return now


def shows_the_run() -> bool:
    """Whether this process is the one that a person looks at: the only one, or torchrun's first worker."""
    return os.environ.get("RANK", "0") == "0"


def devices_of(plan: Plan) -> tuple[int, ...]:
    """The plan's devices in the cluster, ascending; worker i is the i-th of them.

    Of a tensor-parallel plan those of all groups: device d is member d % t of group d // t, worker i member i % t.
    """
    named = sorted({device for stage in plan.stages for device in stage.devices})
    return tuple(group * plan.tensor + member for group in named for member in range(plan.tensor))


def worker_name(plan: Plan, rank: int) -> str:
    """A worker, for people: its number, and where it works in a tensor-parallel group."""
    if plan.tensor == 1:
        return f"worker {rank}"
    group, member = divmod(devices_of(plan)[rank], plan.tensor)
    return f"worker {rank}, member {member} of group {group}"


def _options(steps: int, options: dict[str, Any]) -> Options:
    known = [name for name in Options.__dataclass_fields__ if name != "steps"]
    for name in options:
        if name not in known:
            raise InputError(f"train: {name}", "unknown option", f"one of {', '.join(known)}", nearest(name, known))
    paths = {name: str(Path(options[name]).absolute()) for name in ("checkpoint", "trace") if options.get(name)}
    found = Options(steps, **(options | paths))
    # Found out now, and not when all steps are trained.
    if found.trace is not None:
        try:
            place_to_write(found.trace)
        except InputError as error:
            raise InputError(f"trace {found.trace}", error.found, error.expected, error.next_step) from None
    if found.checkpoint is not None:
        check_folder_to_write(found.checkpoint, f"checkpoint {found.checkpoint}")
        if found.resume is True and not any(Path(found.checkpoint).glob("step-*")):
            raise no_checkpoint(Path(found.checkpoint))
    return found
