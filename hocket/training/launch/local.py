"""Local launch: start and watch one worker for each device of a plan.

This file does not import torch. The watcher never waits for one worker only. It guarantees:

- If a worker dies, raises an error or does not answer, the run ends. The other workers are killed at once, and the
  error names the worker and its position (heartbeat.py). Of several failures the first cause is shown (failures.py).
- If the watcher dies, its workers die: by the end of a pipe, and on Linux by PR_SET_PDEATHSIG. The first worker removes
  the temporary folder.
- The first Ctrl-C (or SIGTERM) asks all workers to stop at the same period, to save a checkpoint and to exit. The
  second kills them; so does the first if there is no folder for checkpoints.

Workers use a file in a private temporary folder for the rendezvous (no port that another program could use). They read
their specification from a JSON file there, and report over a pipe, one JSON document per line. They have their own
sessions, so that a terminal's Ctrl-C reaches only the watcher.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from hocket.errors import InputError
from hocket.planning.plan import Plan
from hocket.profiling.job.job import Job
from hocket.profiling.measure.background_load import usable_cores
from hocket.runtime.progress.heartbeat import Heartbeat
from hocket.training.calibrate.run_feedback import predicted_now
from hocket.training.callbacks.runner import CallbackRunner
from hocket.training.launch import fork_server
from hocket.training.launch.cpu_affinity import cores_of
from hocket.training.launch.environment import MAX_LOCAL_WORKERS, worker_environment
from hocket.training.launch.watcher import LocalWorker, Watch
from hocket.training.launch.worker_spec import JobSpec, TurnsSpec, WorkerSpec, plan_file, plan_text
from hocket.training.run_plan import RunPlan
from hocket.training.worker.monitor.collector import Collector
from hocket.training.worker.monitor.listener import Listener, RunSummary
from hocket.training.worker.options import Options
from hocket.training.worker.ranks import worker_names
from hocket.util.files import write_atomic
from hocket.util.units import show_count


def launch(
    job: Job | Path, run_plan: RunPlan, options: Options, listener: Listener, callbacks: CallbackRunner
) -> RunSummary:
    """Run a job with local workers until it is done, stopped or failed.

    No process is left running.

    Arguments:
        job: a job file, or a job with a known origin (profiling/job/origin.py), because each worker creates it again.
        options: options of workers.
        listener: receives the events of the run.
        callbacks: calls the callbacks of the run.

    Raises:
        InputError: job, plan or options do not fit together, or the job raised an error.
        CallbackFailed: a callback raised an exception.
        WorkerLost: a worker died or does not answer.
        KeyboardInterrupt: Ctrl-C was pressed twice, or once without a folder for checkpoints.
    """
    plan = run_plan.checked
    with local_workers(job, (plan,), options, listener) as workers:
        # This runs while the workers load torch. They keep the plan as written, because its digest goes into
        # checkpoints.
        collector = Collector(replace(plan, predicted=predicted_now(run_plan, listener)), listener, callbacks)
        with Watch(workers, collector, options, listener) as watch:
            watch.run()
        summary = collector.summary(plan.worker_devices)
        if summary.stopped:
            listener.note(summary.stop)
        callbacks.finish(summary.stop if summary.stopped else None)
        listener.finished(summary)
        return summary


@contextmanager
def local_workers(
    job: Job | Path, plans: Sequence[Plan], options: Options, listener: Listener, turns: TurnsSpec | None = None
) -> Iterator[list[LocalWorker]]:
    """Start one worker process for each device of a plan.

    Several plans share the workers, so they must have the same number of devices. All workers end with this context.

    Arguments:
        job: a job file, or a job that each worker can create again from a file and a name there
            (profiling/job/origin.py).
        plans: a single plan, or the plans that are trained in turns.
        options: options of workers.
        listener: receives notes.
        turns: settings of plans that are trained in turns; None for a single plan.

    Raises:
        InputError: too many workers for one machine, plans with different numbers of devices, or a job that
            workers cannot create again, because no file and name lead to it.
    """
    wanted, counts = JobSpec.of(job), {len(plan.worker_devices) for plan in plans}
    if len(counts) != 1:
        raise InputError(
            "plans",
            f"plans of {' and '.join(map(str, sorted(counts)))} workers",
            "plans with the same number of workers",
        )
    (count,) = counts
    if count > MAX_LOCAL_WORKERS:
        hint = "Start it with torchrun on several machines."
        raise InputError("plan", f"{count} devices", f"at most {MAX_LOCAL_WORKERS} local workers", hint)
    places = None
    if options.device != "cuda":
        found = {cores_of(count, options.threads, options.pin, group=plan.tensor) for plan in plans}
        places = found.pop() if len(found) == 1 else None
        if count * options.threads > usable_cores():
            each = show_count(options.threads, "thread")
            listener.note(f"{count} workers of {each} share {usable_cores()} cores")
        if options.pin and places is None:
            listener.note("workers are not pinned, because they cannot all have their own cores")
    with tempfile.TemporaryDirectory(prefix="hocket-run-") as name:
        folder = Path(name)
        for number, plan in enumerate(plans):
            write_atomic(folder / plan_file(number), plan_text(plan))
        workers: list[LocalWorker] = []
        try:
            for rank, called in enumerate(worker_names(plans[0].worker_devices, plans[0].tensor)):
                cores = places[rank] if places else ()
                orders = WorkerSpec(wanted, str(folder), rank, count, options, cores, turns)
                workers.append(_start(orders, called))
            yield workers
        finally:
            _end(workers)


def _start(orders: WorkerSpec, called: str) -> LocalWorker:
    folder, rank, options = Path(orders.folder), orders.rank, orders.options
    page = Heartbeat.create(folder / f"progress-{rank}")
    log = folder / f"worker-{rank}.log"
    reports, report_to = os.pipe()
    control_from, control = os.pipe()
    try:
        path = folder / f"orders-{rank}.json"
        write_atomic(path, json.dumps(asdict(orders)))
        environment = worker_environment(options.threads)
        with log.open("wb") as out:
            # The first worker's output is shown, on standard error, because standard output is for results.
            shown = 2 if rank == 0 else out.fileno()
            handles = (report_to, control_from)
            process = fork_server.start(
                "hocket.training.launch.worker_main",
                [str(path)],
                environment,
                out=shown,
                handles=handles,
                name=f"hocket-{rank}",
            )
    except BaseException:
        for handle in (reports, control):
            os.close(handle)
        raise
    finally:
        os.close(report_to)
        os.close(control_from)
    os.set_blocking(reports, False)
    return LocalWorker(rank, called, process, page, reports, control, log)


def _end(workers: Sequence[LocalWorker]) -> None:
    """Kill running workers and close their pipes.

    Killing is safe: files are written under another name and renamed.
    """
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.kill()
    for worker in workers:
        worker.process.wait()
        os.close(worker.reports)
        os.close(worker.control)
