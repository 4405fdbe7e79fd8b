"""`hocket.train`: entry point of training.

Without `torchrun` it starts and watches local workers (local.py). Under `torchrun` it is one of the workers
(torchrun.py). This file does not import torch, so that the watching process is small and starts at once. All output of
a run goes through a Listener (listener.py; display.py has two).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hocket.errors import InputError, nearest
from hocket.planning.plan import Plan
from hocket.profiling.job.callbacks import check_callbacks
from hocket.profiling.job.job import Job
from hocket.profiling.job.job_file import check_job_file, refuse_in_job_file
from hocket.program.trace.chrome import FORMAT as TRACE_FORMAT
from hocket.runtime.checkpoint.resume_errors import no_checkpoint
from hocket.training.calibrate.run_feedback import keep_feedback, note_amplification, unlike_host_link
from hocket.training.callbacks.runner import CallbackRunner
from hocket.training.launch.torchrun_environment import check_meeting, first_speaks, number_in, under_torchrun
from hocket.training.run_plan import RunPlan
from hocket.training.worker.monitor.listener import Listener, Quiet, RunSummary
from hocket.training.worker.options import Options
from hocket.training.worker.ranks import check_workers, shows_the_run
from hocket.util.files import check_folder_to_write, check_output


def train(
    job: Job | str | Path,
    plan: Plan | str | Path,
    *,
    steps: int,
    on_step: Callable[[dict[str, Any]], None] | None = None,
    listener: Listener | None = None,
    callbacks: Sequence[Any] | None = (),
    **options: Any,
) -> RunSummary:
    """Train a job with a plan.

    Arguments:
        job: a job, or the path of a job file. Local workers create the job again (see `hocket.profiling.job.origin`).
            So it must be defined at the top level of a file, or be returned by a function without arguments. Under
            `torchrun` this process is a worker itself.
        plan: a plan or its file.
        steps, options: see Options.
        on_step: called with a dictionary for each step (see `Listener.step`), if there is no listener.
        listener: receives all output of the run; by default only `on_step` is called.
        callbacks: called after the callbacks of the job (see `Job.callbacks`); None to call none at all.

    Raises:
        InputError: job, plan, number of workers or checkpoints do not fit, or the disk is full.
        SystemExit: under `torchrun` with another number of workers than the plan's, on all workers except the first,
            which raises InputError.
        CallbackFailed: a callback raised an exception; the message names it and the step.
        WorkerLost: a worker died, failed or did not answer; the message names its position in the program.
        KeyboardInterrupt: interrupted twice, or without a folder for checkpoints; the text names the last step. (A run
            with such a folder that is interrupted once saves a checkpoint and returns a summary with `stopped`.)
    """
    refuse_in_job_file("hocket.train")
    check_order(job, plan)
    given = checked_options(steps, options)
    if callbacks is None:
        runner = CallbackRunner()
    else:
        runner = CallbackRunner(check_callbacks(callbacks, "train: callbacks"), job, given.debug)
    run_plan = RunPlan.of(plan)
    listener = listener or Quiet(on_step)
    try:
        with runner:
            summary = run_workers(job, run_plan, given, listener, runner)
        told = unlike_host_link(run_plan.plan.cluster, summary.swaps)
        if told and shows_the_run():
            listener.note(told)
        if run_plan.path is not None and shows_the_run():
            keep_feedback(run_plan, given, summary, listener)
            if summary.losses:  # otherwise the trace is of an earlier run
                note_amplification(run_plan, given, listener)
        return summary
    finally:
        listener.close()


def check_order(job: Job | str | Path, plan: Plan | str | Path, command: str = "train") -> None:
    """Refuse job and plan in the wrong order.

    Arguments:
        command: command for the error, which suggests the right order.

    Raises:
        InputError: the job is a YAML file, and the plan is a Python file.
    """
    if isinstance(job, Job) or isinstance(plan, Plan):
        return
    if Path(plan).suffix == ".py" and Path(job).suffix in (".yaml", ".yml"):
        step = f"The other way round: hocket {command} {plan} {job}"
        raise InputError(command, f"{job} as the job and {plan} as the plan", "a job, then a plan", step)


def run_workers(
    job: Job | str | Path, run_plan: RunPlan, options: Options, listener: Listener, callbacks: CallbackRunner
) -> RunSummary:
    """Run as one of torchrun's workers, or start and watch local workers.

    Raises:
        InputError: `hocket check` refuses the plan, or the number of workers does not fit the plan.
    """
    if under_torchrun():
        with first_speaks():
            check_workers(run_plan.plan.worker_devices, number_in("WORLD_SIZE"))
            _ = run_plan.checked  # if it is refused, only the first worker says so
        check_meeting()
        from hocket.training.launch.torchrun import join

        return join(job, run_plan, options, listener, callbacks)
    if not isinstance(job, Job):
        job = check_job_file(job)
    from hocket.training.launch.local import launch

    return launch(job, run_plan, options, listener, callbacks)


def checked_options(steps: int, options: dict[str, Any]) -> Options:
    """Check the options of a run before any work.

    Arguments:
        steps: total optimizer updates.
        options: other attributes of Options, by name.

    Raises:
        InputError: an unknown option, an impossible value, or a file or folder that cannot be used.
    """
    known = [name for name in Options.__dataclass_fields__ if name != "steps"]
    for name in options:
        if name not in known:
            raise InputError(f"train: {name}", "unknown option", f"one of {', '.join(known)}", nearest(name, known))
    paths = {
        name: str(Path(options[name]).absolute()) for name in ("checkpoint", "trace", "weights") if options.get(name)
    }
    found = Options(steps, **(options | paths))
    # Check now, not after all steps are trained.
    if found.trace is not None:
        try:
            check_output(found.trace, "trace", TRACE_FORMAT)
        except InputError as error:
            raise InputError(f"trace {found.trace}", error.found, error.expected, error.next_step) from None
    if found.weights is not None and not Path(found.weights).exists():
        raise InputError(f"weights {found.weights}", "no such file or folder", "a file or folder of weights")
    if found.checkpoint is not None:
        check_folder_to_write(found.checkpoint, f"checkpoint {found.checkpoint}")
        if found.resume is True and not any(Path(found.checkpoint).glob("step-*")):
            raise no_checkpoint(Path(found.checkpoint))
    return found
