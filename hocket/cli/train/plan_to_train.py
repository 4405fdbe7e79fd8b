"""Plan of `hocket train`: the file that was named, or one that is made for the job."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hocket.cli.output.progress import Progress
from hocket.errors import InputError
from hocket.printable import say

AUTO = "auto"


@dataclass(frozen=True)
class AskedPlan:
    """Plan that the command line asks for.

    Attributes:
        path: plan file; None to make a plan.
        workers: workers to plan for; None for the default.
        replan: True to measure and plan again.
    """

    path: Path | None
    workers: int | None = None
    replan: bool = False

    @classmethod
    def of(cls, plan: Path | None, option: str | None, workers: int | None, replan: bool) -> "AskedPlan":
        """Combine the argument PLAN with the options.

        Raises:
            InputError: two plans are named, or a plan is named together with options for making one.
        """
        if plan is not None and option is not None:
            raise InputError("--plan", f"{option}, and {plan} as the plan", "one of the two")
        path = plan if option is None or option == AUTO else Path(option)
        if path is not None:
            step = "Leave out the plan to have one made; the plan file decides the workers."
            for name, given in (("--workers", workers), ("--replan", replan or None)):
                if given is not None:
                    raise InputError(name, f"given with the plan {path}", "no plan file", step)
        return cls(path, workers, replan)


@contextmanager
def plan_to_train(job: Path, asked: AskedPlan, device: str, threads: int, json: bool) -> Iterator[Path]:
    """Yield the path of the plan to train with; without a plan file, make one.

    Arguments:
        device, threads: options of the training.
        json: True to print lines for people on standard error.

    Raises:
        InputError: no plan can be made for these options, or for this job.
    """
    if asked.path is not None:
        yield asked.path
        return
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        from hocket.training.launch.torchrun_environment import first_speaks

        step = "Plan first: `hocket profile`, `hocket links` and `hocket plan`; then name the plan file."
        with first_speaks():
            raise InputError(
                "plan", "no plan file, under torchrun", "a plan file: a plan is made for local workers only", step
            )
    if device.startswith("cuda"):
        step = "Plan first: `hocket profile --device cuda` and `hocket plan`; then name the plan file."
        raise InputError("--device", f"{device}, without a plan file", "cpu: links of GPUs are not measured", step)
    if job.suffix in (".yaml", ".yml"):
        raise InputError(
            "train", f"{job} as the job", "a job file, then a plan", f"For example: hocket train job.py {job}"
        )
    from hocket.training.auto_plan.auto_plan import DEFAULT_WORKERS, AutoPlanRequest, auto_plan

    workers = DEFAULT_WORKERS if asked.workers is None else asked.workers
    request = AutoPlanRequest(workers, threads, asked.replan)

    def tell(line: str) -> None:
        out = sys.stderr if json else sys.stdout
        say(line, file=out)
        out.flush()  # a log shows the line when it is said, not minutes later

    with ExitStack() as files:
        with Progress("planning", not json) as report:
            made = files.enter_context(auto_plan(job, request, tell, report))
        yield made
