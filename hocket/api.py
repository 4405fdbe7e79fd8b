"""Public Python interface: `Job`, `profile`, `plan`, `simulate`, `train`, `list_checkpoints` and `export_weights`.

`PlanRequest` holds a planning request with all its options. `tokens` is for jobs with token-mean losses, `Evaluation`
for jobs that are evaluated while they train. Callbacks of a run receive a `StepInfo` or an `EvaluationInfo`; `logger`
returns a callback that writes a log. Each function accepts a profile, a cluster or a plan as an object or as the path
of its file. Results can be saved and edited.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket.errors import InputError
from hocket.hardware.cluster import Cluster
from hocket.hardware.device_type import DeviceType
from hocket.hardware.resolve import device_type_of
from hocket.planning.load import LoadedPlan, open_plan, opened, validate
from hocket.planning.plan import Plan
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.result import Search
from hocket.profiling.analytic.transformer import Transformer
from hocket.profiling.data.evaluation import Evaluation
from hocket.profiling.job.job import Job
from hocket.profiling.job.job_file import load_job, refuse_in_job_file
from hocket.profiling.job.loss_weight import tokens
from hocket.profiling.measure.background_load import usual_neighbours
from hocket.profiling.profile import CPU, ModelProfile
from hocket.program.trace.trace import Trace
from hocket.simulation.simulator import Summary
from hocket.training.callbacks.evaluation_info import EvaluationInfo
from hocket.training.callbacks.logger import logger
from hocket.training.callbacks.step_info import StepInfo

if TYPE_CHECKING:
    from hocket.cost.analytic.calibration import Calibration
    from hocket.planning.goals.subclusters import Planned
    from hocket.planning.mesh.plan_model import SizedSearch
    from hocket.runtime.checkpoint.export.export import Exported
    from hocket.runtime.checkpoint.listing import ListedCheckpoint
    from hocket.training.worker.monitor.listener import RunSummary as Trained

__all__ = [
    "Evaluation",
    "EvaluationInfo",
    "Job",
    "PlanRequest",
    "StepInfo",
    "logger",
    "plan",
    "profile",
    "simulate",
    "tokens",
    "train",
    "list_checkpoints",
    "export_weights",
]


def profile(
    job: Job | str | Path,
    microbatch_sizes: Sequence[int] | None = None,
    tensor: int = 1,
    *,
    for_type: str | DeviceType | None = None,
    calibration: "Calibration | str | Path | None" = None,
    **options: Any,
) -> ModelProfile:
    """Measure seconds and bytes of each layer of a job.

    On a CPU, the calling process does not return freed memory to the operating system from then on.

    Arguments:
        job: a job, or the path of a job file. A job file is measured while other processes keep the remaining cores
            busy, as in training; `neighbours` sets the number of these processes.
        microbatch_sizes: samples per microbatch to measure, such as (1, 2, 4).
        tensor: tensor-parallel size. One rank of a group of this size is measured.
        for_type: device type, from the catalogue or a cluster file. Estimate layer costs on this type with an analytic
            model instead of measuring; the model of a job file may then be larger than memory.
        calibration: correction of the analytic model for that device type, from `hocket calibrate`.
        options: fields of `hocket.profiling.measure.request.MeasureRequest`, and `sequence_parallel` with `tensor`;
            with `for_type`, keyword arguments of `hocket.profiling.analytic.sketch.sketch`.

    Raises:
        CaptureError: the model cannot be captured; the message names the module and the reason.
        RefusedError: the model cannot be divided into `tensor` tensor-parallel ranks.
        InputError: `calibration`, `tensor` or `sequence_parallel` conflicts with the other arguments.
    """
    refuse_in_job_file("hocket.profile")
    if for_type is not None:
        from hocket.cost.analytic.calibration import Calibration
        from hocket.cost.analytic.from_operators import costed
        from hocket.profiling.analytic.sketch import sketch

        if tensor != 1:
            raise InputError("tensor", str(tensor), "1, because `for_type` estimates costs and measures nothing")
        kind = for_type if isinstance(for_type, DeviceType) else device_type_of(for_type)
        taught = Calibration.read(calibration) if isinstance(calibration, str | Path) else calibration
        options.setdefault("foreach", kind.name != CPU)
        return costed(sketch(job, microbatch_sizes or (), **options), kind, taught)
    if calibration is not None:
        raise InputError(
            "calibration", "given without for_type", "a device type to calibrate", "Pass for_type as well."
        )
    from hocket.profiling.measure.request import MeasureRequest
    from hocket.runtime.tensor_parallel.measure_rank import measure_member

    loaded = job if isinstance(job, Job) else load_job(job)
    if loaded.path is not None:
        usual = usual_neighbours(str(options.get("device", "cpu")), options.get("threads", 1))
        options.setdefault("neighbours", usual)
    sizes = tuple(microbatch_sizes or (1, 2, 4, 8))
    sequence_parallel = options.pop("sequence_parallel", False)
    return measure_member(loaded, tensor, sizes, MeasureRequest(**options), sequence_parallel)


def plan(
    profile: ModelProfile | Transformer | str | Path,
    cluster: Cluster | str | Path,
    batch_size: int | PlanRequest,
    strategies: Sequence[str] = (),
    *,
    objective: str = "",
    samples: float | None = None,
    tokens: float | None = None,
    deadline_s: float | None = None,
    **options: Any,
) -> Any:
    """Find the best plan for a profiled job, or for an analytic model.

    Arguments:
        profile: a profile or its path; or an analytic model: a `Transformer`, a file of its sizes, or the name of a
            published model.
        batch_size: samples of one optimizer update; or a `PlanRequest`, in place of strategies and options.
        strategies: names to consider; all synchronous strategies if empty.
        objective: "time", "cost" (most samples per dollar) or "devices" (fewest devices that meet the deadline; the
            default if a deadline is given). See hocket/planning/goals/goal.py.
        samples: length of the training, in samples.
        tokens: length of the training in tokens; for analytic models only.
        deadline_s: seconds for the whole training.
        options: attributes of `PlanRequest`, and `progress`, a callback for each step of the search with (done, total,
            label). For a profile also `shard` (the state that replicas shard) and `profile_path` (the path that the
            plan stores).

    Returns:
        For a profile, a `Search`: `.best.plan` is the best plan, `.candidates` are all plans, `.refused` lists refusals
        with reasons. A plan made from the path of a profile stores that path.

        For an analytic model, a `SizedSearch`: `.best` is the best layout, `.save(path)` writes the plan and its
        profile.

        With an objective, a length or a deadline, a `Planned`: `.found` is the search on the chosen sub-cluster,
        `.worth` the time and cost of its best plan, `.parting` the other sub-clusters.

    Raises:
        InputError: arguments that conflict, such as tokens with a profile.
        TypeError: an unknown option.
    """
    from hocket.planning.goals.for_model import plan_sizes
    from hocket.planning.goals.for_profile import plan_profile
    from hocket.planning.goals.goal import goal_of
    from hocket.profiling.analytic.sizes import open_model

    model = profile if isinstance(profile, ModelProfile | Transformer) else open_model(profile)
    if not isinstance(cluster, Cluster):
        cluster = Cluster.read(cluster)
    sequence = model.sequence if isinstance(model, Transformer) else 0
    goal = goal_of(objective, samples, tokens, deadline_s, sequence)
    progress = options.pop("progress", None)
    planned: Planned[Search] | Planned[SizedSearch]
    if isinstance(model, Transformer):
        request = _request(batch_size, strategies, options)
        planned = plan_sizes(model, cluster, request, goal, progress)
    else:
        path = "" if isinstance(profile, ModelProfile) else Path(str(profile)).resolve().as_posix()
        path = options.pop("profile_path", path)
        shard = options.pop("shard", None)
        if shard is not None:
            options["shards"] = (shard,)
        planned = plan_profile({path: model}, cluster, _request(batch_size, strategies, options), goal, progress)
    asked = (objective or None, samples, tokens, deadline_s)
    return planned.found if all(word is None for word in asked) else planned


def _request(batch_size: int | PlanRequest, strategies: Sequence[str], options: dict[str, Any]) -> PlanRequest:
    """Return the request that `plan` received, or build one from its arguments.

    Raises:
        InputError: a `PlanRequest` is given together with strategies or options.
        TypeError: an unknown option.
    """
    if not isinstance(batch_size, PlanRequest):
        return PlanRequest(batch_size, strategies, **options)
    if strategies or options:
        names = ["strategies"] * bool(strategies) + sorted(options)
        raise InputError(
            "plan", f"a PlanRequest and {', '.join(names)}", "a PlanRequest alone, with these as its fields"
        )
    return batch_size


def simulate(plan: Plan | str | Path, profile: ModelProfile | str | Path | None = None) -> tuple[Trace, Summary]:
    """Predict the trace of every instruction of a plan, and summarize it.

    Arguments:
        profile: by default the profile that the plan names, relative to the plan's folder; for a `Plan` object,
            relative to the working directory.

    Raises:
        InputError: the plan was made for another profile, or there is no profile.
        ProgramError: `hocket check` refuses the plan, for example because a device has too little memory.
    """
    known = _with_profile(plan, profile)
    validate(known)
    return known.simulate()


def _with_profile(plan: Plan | str | Path, profile: ModelProfile | str | Path | None) -> LoadedPlan:
    if profile is not None:
        place = "" if isinstance(plan, Plan) else str(plan)
        plan = plan if isinstance(plan, Plan) else Plan.read(plan)
        return LoadedPlan(plan, profile if isinstance(profile, ModelProfile) else ModelProfile.read(profile), place)
    if not isinstance(plan, Plan):
        return open_plan(plan)
    if not plan.profile:
        raise InputError(
            "simulate: profile", "nothing", "the profile that the plan was made for, or its path", "Pass profile=."
        )
    return opened(plan, Path(), "plan")


def train(
    job: Job | str | Path,
    plan: Plan | str | Path = "auto",
    *,
    steps: int,
    on_step: Callable[[dict[str, Any]], None] | None = None,
    callbacks: Sequence[Any] | None = (),
    workers: int | None = None,
    **options: Any,
) -> "Trained":
    """Train a job with a plan on local workers, or as one worker under `torchrun`.

    Arguments:
        plan: a plan, its path, or "auto": the job is profiled, the links are measured and the fastest plan is made.
            These files are kept in the folder `.hocket` beside the job's file, and used again for the same job.
        workers: local workers to plan for, with the plan "auto"; by default 2, or as many as `torchrun` has started.
        steps: total optimizer updates, including updates before a resume.
        on_step: callback for each step; its argument has the step's number, loss and samples.
        callbacks: called after the callbacks of the job (see `Job.callbacks`), such as `hocket.logger("csv:run.csv")`;
            None to call none at all.
        options: attributes of `hocket.training.worker.options.Options`, such as `checkpoint`, `resume`, `on_nan` or
            `trace`.

    Returns:
        Summary of the run.

    Raises:
        InputError: `workers` is given with a plan; or no plan can be made here (see `plan_to_train`).
    """
    from hocket.training.auto_plan.plan_to_train import AskedPlan, plan_to_train
    from hocket.training.train import checked_options
    from hocket.training.train import train as run

    refuse_in_job_file("hocket.train")
    with plan_to_train(job, AskedPlan(plan, workers), checked_options(steps, options)) as made:
        return run(job, made, steps=steps, on_step=on_step, callbacks=callbacks, **options)


def list_checkpoints(folder: str | Path) -> "list[ListedCheckpoint]":
    """List the checkpoints of a run, newest last, and verify the checksums of all their files.

    Checkpoints that a resumed run set aside as damaged are included.

    Arguments:
        folder: folder of all checkpoints, the `checkpoint` of `train`.

    Raises:
        InputError: no such folder, or a folder without checkpoints.
    """
    from hocket.runtime.checkpoint.listing import list_checkpoints as run

    return run(folder)


def export_weights(
    checkpoint: str | Path,
    output: str | Path,
    format: str = "safetensors",
    job: Job | str | Path | None = None,
    max_shard_bytes: float | None = None,
    force: bool = False,
    ema: bool = False,
) -> "Exported":
    """Write the model's weights of a checkpoint to files that other programs read.

    Any plan may have written the checkpoint. Tensors have the names of the model's `state_dict()`.

    Arguments:
        checkpoint: folder of one checkpoint (step-...), or folder of a run, of which the newest undamaged checkpoint is
            exported.
        output: folder for the files.
        format: "safetensors"; "torch", a file of `torch.save`; or "hf", the `save_pretrained` of the job's model.
        job: the job, or the path of its file. With it, tied tensors have all their names, and buffers that
            `state_dict()` leaves out are left out. Format "hf" requires it. The checkpoint's weights are loaded into
            the job's model, except for "safetensors".
        max_shard_bytes: maximum tensor bytes of a file, not for "torch"; by default one file.
        force: replace the files of an earlier export.
        ema: export the moving average of the weights (`Job.ema`) in place of the weights.

    Raises:
        InputError: no undamaged checkpoint, a checkpoint of another job, or an output folder that has files.
    """
    from hocket.runtime.checkpoint.export.export import ExportOptions
    from hocket.runtime.checkpoint.export.export import export_weights as run

    refuse_in_job_file("hocket.export_weights")
    return run(checkpoint, output, job, ExportOptions(format, max_shard_bytes, force, ema))
