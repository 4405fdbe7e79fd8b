"""One worker, from its first step to its last.

It runs segments of the program, with checkpoints between them. Every worker of a run makes the same calls in the same
order. Decisions of a single worker depend only on numbers that all workers have. This file does not depend on the
process that starts or watches the worker.
"""

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from hocket.errors import InputError, InternalError
from hocket.planning.plan import Plan
from hocket.profiling.job.job import Job
from hocket.profiling.job.learning_rate.learning_rates import rates_of, remarks
from hocket.profiling.job.loss_weight import Tokens
from hocket.runtime.checkpoint.folder_lock import claimed
from hocket.runtime.engine.distributed import Worker
from hocket.runtime.kv_exchange import KVExchange
from hocket.runtime.loading.loaders import Loaders
from hocket.runtime.nan_guard.guard import Guard
from hocket.runtime.nan_guard.replay import check_guards
from hocket.runtime.progress.heartbeat import WorkerState
from hocket.runtime.progress.progress_observer import Watched
from hocket.runtime.progress.recording import Recording
from hocket.runtime.progress.segments import last_step, segments
from hocket.runtime.stage.device_type import known_type, peak_flops_per_s, peak_step_s
from hocket.runtime.swapping.host_link import host_link
from hocket.runtime.swapping.memory_manager import MemoryManager
from hocket.training.worker.evaluations import Evaluations
from hocket.training.worker.monitor.trace_writer import MAX_EVENTS, write_trace
from hocket.training.worker.options import Options
from hocket.training.worker.prepared import Prepared, RankInfo, fitting, prepare, process_group
from hocket.training.worker.run_notes import notes_before, notes_of_division
from hocket.training.worker.same_samples import Reads
from hocket.training.worker.telemetry import Telemetry, with_rates
from hocket.util.files import write_atomic
from hocket.util.units import show_seconds

if TYPE_CHECKING:
    from hocket.runtime.checkpoint.manager import CheckpointManager


def work(job: Job, plan: Plan, options: Options, rank_info: RankInfo, telemetry: Telemetry) -> None:
    """Train until all steps are done, or until the process that watches the worker asks it to stop.

    Raises:
        InputError: job, plan, workers or checkpoints do not fit.
        WorkerLost: another worker was lost.
    """
    job = fitting(job, plan, options, rank_info.workers)
    board = KVExchange(PrefixStore("board", rank_info.store), rank_info.rank, rank_info.workers)
    with claimed(options.checkpoint, board):
        _train(prepare(job, plan, options, rank_info, board), options, rank_info, board, telemetry)


def _train(made: Prepared, options: Options, rank_info: RankInfo, board: KVExchange, telemetry: Telemetry) -> None:
    """Train a prepared job; this run has locked its checkpoint folder."""
    job, plan, report = made.job, made.plan, telemetry.report
    captured, division, program, pace = made.captured, made.division, made.program, made.pace
    number, group, device = made.number, made.group, made.device
    reads = Reads(captured.job, board)
    speak = report if rank_info.rank == 0 else _silent
    # All ranks of a tensor-parallel group have the same losses. The first rank reports them.
    speaks = with_rates(report, job) if made.member == 0 else _silent
    watched = Watched(telemetry.progress, speaks, program, group, pace)
    watched.report_norm = speak
    with process_group(rank_info, device), ExitStack() as stack:
        if options.drawing is not None:
            report(_drawn(made, options, board, Telemetry(telemetry.progress, speak)))
            return
        recording = Recording(program, number, MAX_EVENTS // rank_info.workers) if options.trace is not None else None
        memory = None
        if options.host_link_bytes_per_s is not None and plan.swap is not None:
            link = host_link(options.host_link_bytes_per_s, board, rank_info.local_rank)
            memory = MemoryManager(group, device, *made.layout.budgets(group), pace_out=link.out, pace_in=link.back)
        evaluations = Evaluations(made, board) if job.evaluate is not None else None
        guard = Guard(options.on_nan, report)
        clock = time.perf_counter if recording is not None else None
        engine = Worker(made.executable, observer=watched, clock=clock, memory=memory, guard=guard)
        if made.loaders:
            loaders = Loaders(captured.job, made.loaders, device, rank_info.folder)
            stack.callback(loaders.close)
            engine.read_with(loaders)
        engine.device.microbatches.on_load = reads.take
        if evaluations is not None:
            evaluations.begin(engine, telemetry.progress)
        checkpoints = _checkpoint_manager(made, options, rank_info, board)
        if checkpoints is not None:
            stack.enter_context(checkpoints.save_errors_first())
        start = checkpoints.resume(engine, speak) if checkpoints is not None else 0
        if options.weights is not None:
            _start_from(options.weights, engine, job, board, start, speak)
        elif made.numberless and not start:
            raise InputError(
                "Job.model", "weights on `meta`, and no checkpoint", "a checkpoint, or --weights with a file"
            )
        evaluates = None if evaluations is None else evaluations.every or options.steps
        asked = (pace, start, options.steps, _every(options, start), evaluates)
        end = last_step(*asked)
        checkpoint = checkpoints.newest() if checkpoints is not None else None
        norms = rank_info.rank == 0 and engine.device.updates.has_norm
        if norms:
            engine.device.updates.on_norm = watched.norm
        told: dict[str, Any] = {
            "callbacks": bool(job.callbacks),
            "norms": norms,
            "tokens": isinstance(job.loss_weight, Tokens),
        }
        told |= {"evaluates": evaluations.names} if evaluations is not None else {}
        rate = peak_flops_per_s(plan.cluster, number, device, job.dtype)
        told["peak_step_s"] = peak_step_s(made.flops, rate, board)
        speak({"event": "start", "first": start, "steps": end, "checkpoint": checkpoint, "at_s": time.time(), **told})
        if division is not None:
            for text in notes_of_division(division, plan, captured):
                speak({"event": "note", "text": text})
        if end > start:
            rates_of(job).at(end - 1)
        for text in remarks(job, start > 0):
            speak({"event": "note", "text": text})
        for text in notes_before(made, options, next(segments(*asked), None), start, end):
            speak({"event": "note", "text": text})
        step = start
        for segment in segments(*asked):
            watched.begin(segment)
            reads.begin(segment.first_step * plan.batch_size)
            periods = engine.run(segment.periods, segment.first_step * plan.batch_size)
            watched.end()
            reads.compare()
            if recording is not None:
                recording.add(engine.records, periods)
            steps = pace.steps(periods)
            if steps is None or engine.position != (segment.first_step + steps) * plan.batch_size:
                raise InternalError(
                    f"a segment of {periods} program periods ended at sample {engine.position}, not at the expected end "
                    "of a step"
                )
            if options.on_nan != "go":
                check_guards(engine, board, watched, lambda: checkpoints.newest() if checkpoints is not None else None)
            step, enough, best, loss = segment.first_step + steps, "", False, None
            if evaluations is not None and segment.evaluates and not watched.stopped:
                evaluations.run(step, speak)
                enough, best, loss = evaluations.enough, evaluations.saves, evaluations.kept_loss
            if checkpoints is not None and (segment.saves or watched.stopped or enough or best):
                telemetry.progress.state = WorkerState.SAVING
                checkpoints.save(engine, step, periods, speak, loss)
            elif checkpoints is not None:
                checkpoints.passed(engine, periods)
            if enough and step < end:
                speak({"event": "note", "text": f"stopped after step {step}: {enough}"})
            if watched.stopped or enough:
                break
        if checkpoints is not None:
            telemetry.progress.state = WorkerState.SAVING
            checkpoints.finish()
        peak_bytes = max(engine.peak_memory_bytes, evaluations.peak_memory_bytes if evaluations is not None else 0)
        if options.trace is not None and recording is not None and end > start:
            meta: dict[str, Any] = {"source": "measured", "program": program.name, **plan.trace_meta}
            if plan.tensor > 1:
                meta["tensor"] = plan.tensor
            write_trace(Path(options.trace), recording, board, meta, peak_bytes, engine.memory_course)
        # No worker exits while another may still need it.
        cold_s = sum(runner.cold_s for runner in engine.device.stages.values())
        coldest_s = max(float(fact["cold_s"]) for fact in board.share({"step": step, "cold_s": cold_s}))
        if coldest_s > 0:
            text = f"compiling stages took up to {show_seconds(coldest_s)} per worker"
            speak({"event": "note", "text": text})
    collectives = asdict(division.members.done) if division else {}
    report(
        result(job, device, engine, watched, step)
        | {
            "peak_memory_bytes": peak_bytes,
            "stopped": watched.stopped and step < end,
            "collectives": collectives,
            "skipped": guard.skipped + (scaler.skipped if (scaler := engine.device.scaler) is not None else 0),
            "loss_scale": scaler.state.scale if scaler is not None else None,
            "saving_s": checkpoints.waited_s if checkpoints is not None else 0.0,
        }
    )


def result(job: Job, device: torch.device, engine: Worker, watched: Watched, step: int) -> dict[str, Any]:
    """Build the last report of a worker, after `step` steps; see monitor/collector.py."""
    return {
        "event": "done",
        "steps": step,
        "iteration_s": watched.iteration_s,
        "warm_steps": watched.warm_steps,
        "queued_share": watched.queued_share,
        "optimizer": engine.device.model.optimizer,
        "dtype": job.dtype,
        "device_type": known_type(device),
        "peak_memory_bytes": engine.peak_memory_bytes,
        "swaps": asdict(engine.device.swapping.took()) if engine.device.swapping is not None else {},
        "stopped": False,
    }


def _drawn(made: Prepared, options: Options, board: KVExchange, telemetry: Telemetry) -> dict[str, Any]:
    """Train with random buckets and threads, to measure overlap.

    The first worker writes the measurements of all workers to the file `notes` of the options.

    Returns:
        The last report of this worker.
    """
    from hocket.training.calibrate.buckets.run import measure

    assert options.drawing is not None
    telemetry.report({"event": "start", "first": 0, "steps": 0, "checkpoint": None})
    noted = measure(made.captured, made.plan, made.number, made.device, options.drawing, telemetry)
    every = board.share(noted)
    if board.rank == 0 and options.notes is not None:
        write_atomic(options.notes, json.dumps(every))
    return {"event": "done", "steps": 0, "iteration_s": None, "peak_memory_bytes": 0, "stopped": False}


def _start_from(
    weights: str, engine: Worker, job: Job, board: KVExchange, start: int, speak: Callable[[dict[str, Any]], None]
) -> None:
    """Load initial weights, if the run does not resume after `start` steps."""
    if start:
        speak({"event": "note", "text": f"{weights} is not read: the run resumes with the weights of its checkpoint"})
        return
    from hocket.runtime.checkpoint.initial_weights.start_from import start_from

    start_from(weights, engine, job, board, speak)


def _checkpoint_manager(
    made: Prepared, options: Options, rank_info: RankInfo, board: KVExchange
) -> "CheckpointManager | None":
    """Create the checkpoint manager, if the options name a folder of checkpoints.

    It is imported here, because DCP takes a second to load.
    """
    if options.checkpoint is None:
        return None
    from hocket.runtime.checkpoint.manager import CheckpointManager, SaveOptions

    background = None
    if options.async_save and made.plan.swap is None:  # the memory of hosts is for what is swapped
        # A store of its own: a wait for another worker blocks a store for all threads that use it.
        store = PrefixStore("saves", rank_info.store.clone())  # type: ignore[attr-defined]
        background = KVExchange(store, rank_info.rank, rank_info.workers)
    saves = SaveOptions(options.resume, options.keep, goes_on=options.on_nan == "go")
    return CheckpointManager(made.job, Path(options.checkpoint), board, saves, background)


def _silent(event: dict[str, Any]) -> None:
    """Drop an event, because another worker reports the same one."""


def _every(options: Options, start: int) -> int | None:
    """Return the steps between checkpoints, by default a tenth of the remaining steps.

    None without checkpoints.
    """
    if options.checkpoint is None:
        return None
    return options.every or max(1, (options.steps - start) // 10)
