"""The public face in Python: five names. Everything that they return can be saved, shown, edited and handed on.

Where a profile, a cluster or a plan is asked for, the path of its file will do. `tokens` helps to write a job.
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
from hocket.planning.search.result import Search
from hocket.profiling.analytic.transformer import Transformer
from hocket.profiling.job.job import Job, load_job, refuse_in_job_file
from hocket.profiling.job.loss_weight import tokens
from hocket.profiling.measure.background_load import usual_neighbours
from hocket.profiling.profile import CPU, ModelProfile
from hocket.program.trace.trace import Trace
from hocket.simulation.simulator import Summary

if TYPE_CHECKING:
    from hocket.cost.analytic.calibration import Calibration
    from hocket.planning.goals.subclusters import Planned
    from hocket.planning.mesh.plan_model import SizedSearch
    from hocket.runtime.worker.monitor.listener import RunSummary as Trained

__all__ = ["Job", "plan", "profile", "simulate", "tokens", "train"]


def profile(
    job: Job | str | Path,
    microbatch_sizes: Sequence[int] | None = None,
    tensor: int = 1,
    *,
    for_type: str | DeviceType | None = None,
    calibration: "Calibration | str | Path | None" = None,
    **options: Any,
) -> ModelProfile:
    """Measure a job, or the job of a job file, layer by layer. See `hocket.profiling.measure.measure.measure` for the options.

    With `tensor` it is one of so many tensor-parallel devices that is measured. The job of a job file is measured among as many busy
    neighbours as usual, if nothing else is said.

    Arguments:
        for_type: measure nothing, but work out what the job takes on this device type (of the catalogue, or of a cluster
            file); the model of a job file may be larger than memory. See `hocket.profiling.analytic.sketch.sketch` for the options.
        calibration: of that device type, from `hocket calibrate`.

    Raises:
        CaptureError: the model cannot be captured; names the module and the reason.
    """
    refuse_in_job_file("hocket.profile")
    if for_type is not None:
        from hocket.cost.analytic.calibration import Calibration
        from hocket.cost.analytic.from_operators import costed
        from hocket.profiling.analytic.sketch import sketch

        if tensor != 1:
            raise InputError("tensor", str(tensor), "1, where nothing is measured")
        kind = for_type if isinstance(for_type, DeviceType) else device_type_of(for_type)
        taught = Calibration.read(calibration) if isinstance(calibration, str | Path) else calibration
        options.setdefault("foreach", kind.name != CPU)
        return costed(sketch(job, microbatch_sizes or (), **options), kind, taught)
    if calibration is not None:
        raise InputError("calibration", "given", "nothing, where the job is measured", "Give for_type as well.")
    from hocket.runtime.tensor_parallel.measure_rank import measure_member

    loaded = job if isinstance(job, Job) else load_job(job)
    if loaded.path is not None:
        usual = usual_neighbours(str(options.get("device", "cpu")), options.get("threads", 1))
        options.setdefault("neighbours", usual)
    sizes = (tuple(microbatch_sizes),) if microbatch_sizes else ()
    return measure_member(loaded, tensor, *sizes, **options)


def plan(
    profile: ModelProfile | Transformer | str | Path,
    cluster: Cluster | str | Path,
    batch_size: int,
    strategies: Sequence[str] = (),
    *,
    objective: str = "",
    samples: float | None = None,
    tokens: float | None = None,
    deadline_s: float | None = None,
    **options: Any,
) -> Any:
    """Search for the best plan of a profiled job, or of a model that is known by its sizes.

    Of a profile `.best.plan` is it, `.candidates` are all, `.refused` says why not; a plan made from the path of a profile names
    that path, so that it can be opened wherever it is saved. Of sizes (a `Transformer`, a file of them, a published model's name)
    `.best` is it, `.save(path)` writes it with its profile.

    Arguments:
        objective: "time", "cost" (most samples for a dollar) or "devices" (the fewest that meet the deadline, the default where
            there is one): hocket/planning/goals/goal.py. samples, tokens: to train on; tokens of sizes only. deadline_s: for all of them.
        options: of `hocket.planning.search.search.search`, or of `hocket.planning.mesh.plan_model.search_sizes`.

    Returns:
        The search, a `Search` or a `SizedSearch`; where one of the goals is given a `Planned`: `.found` is the search on the
        part of the cluster that was chosen, `.worth` what its best plan means for the goal, `.parting` what was asked of others.

    Raises:
        InputError: tokens with a profile; see the searches.
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
    planned: Planned[Search] | Planned[SizedSearch]
    if isinstance(model, Transformer):
        planned = plan_sizes(model, cluster, batch_size, goal, strategies=strategies, **options)
    else:
        path = "" if isinstance(profile, ModelProfile) else Path(str(profile)).resolve().as_posix()
        path = options.pop("profile_path", path)
        planned = plan_profile({path: model}, cluster, batch_size, goal, strategies=strategies, **options)
    asked = (objective or None, samples, tokens, deadline_s)
    return planned.found if all(word is None for word in asked) else planned


def simulate(plan: Plan | str | Path, profile: ModelProfile | str | Path | None = None) -> tuple[Trace, Summary]:
    """Predict what a plan does: the trace of every instruction, and a summary.

    Without a profile it is the one that the plan names: seen from the plan's folder, or for a plan that was not read from
    a file, from the folder that one works in.

    Raises:
        InputError: plan and profile do not belong together, or the plan names no profile and none is given.
        ProgramError: `hocket check` refuses it, for example because it may need more memory than its devices have.
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
        raise InputError("simulate: profile", "nothing", "the profile that the plan was made for, or its path")
    return opened(plan, Path(), "plan")


def train(
    job: Job | str | Path,
    plan: Plan | str | Path,
    *,
    steps: int,
    on_step: Callable[[dict[str, Any]], None] | None = None,
    **options: Any,
) -> "Trained":
    """Train for real. See `hocket.runtime.train.train` for the options."""
    from hocket.runtime.train import train as run

    return run(job, plan, steps=steps, on_step=on_step, **options)
