"""Plan of a training run: the plan that was named, or one that is made for the job."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hocket.errors import InputError
from hocket.planning.plan import Plan
from hocket.profiling.job.job import Job
from hocket.training.auto_plan.auto_plan import DEFAULT_WORKERS, AutoPlanRequest, Say, auto_plan
from hocket.training.auto_plan.plan_of_first import check_torchrun, plan_of_first
from hocket.training.auto_plan.profile_job import Progress
from hocket.training.launch.torchrun_environment import first_speaks, under_torchrun
from hocket.training.worker.options import Options
from hocket.training.worker.ranks import shows_the_run

AUTO = "auto"


@dataclass(frozen=True)
class AskedPlan:
    """Plan that a user asks for.

    Attributes:
        plan: a plan or its file; None or "auto" to make a plan, and None from then on.
        workers: workers to plan for; None for the default.
        replan: True to measure and plan again.

    Raises:
        InputError: a plan is named together with settings for making one.
    """

    plan: Plan | str | Path | None
    workers: int | None = None
    replan: bool = False

    def __post_init__(self) -> None:
        if self.plan is None or self.plan == AUTO:
            object.__setattr__(self, "plan", None)
            return
        named = "a plan" if isinstance(self.plan, Plan) else f"the plan {self.plan}"
        step = "Leave out the plan to have one made: a plan decides the workers."
        for name, given in (("workers", self.workers), ("replan", self.replan or None)):
            if given is not None:
                raise InputError(name, f"given with {named}", "no plan", step)


def _silent(line: str) -> None:
    """Print nothing: a function of the Python interface returns its results."""


@contextmanager
def plan_to_train(
    job: Job | str | Path,
    asked: AskedPlan,
    options: Options,
    say: Say = _silent,
    progress: Progress | None = None,
) -> Iterator[Plan | str | Path]:
    """Yield the plan to train with, or its path; without a plan, make one.

    Arguments:
        options: checked options of the training.
        say, progress: see `auto_plan`.

    Raises:
        InputError: no plan can be made for these options, or for this job. Under torchrun, only the first worker raises
            it; the others end with SystemExit.
    """
    if asked.plan is not None:
        yield asked.plan
        return
    workers = DEFAULT_WORKERS if asked.workers is None else asked.workers
    if under_torchrun():
        workers = check_torchrun(asked.workers)
    if options.device.startswith("cuda"):
        step = "Plan first: `hocket profile --device cuda` and `hocket plan`; then name the plan file."
        with first_speaks():
            raise InputError("device", f"{options.device}, without a plan", "cpu: links of GPUs are not measured", step)
    request = AutoPlanRequest(workers, options.threads, asked.replan, under_torchrun())

    def make() -> AbstractContextManager[Path]:
        return auto_plan(job, request, say, progress)

    with plan_of_first(make, say if shows_the_run() else _silent) if under_torchrun() else make() as path:
        yield path
