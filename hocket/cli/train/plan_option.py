"""Plan of `hocket train`: the argument PLAN, the option --plan, or a plan that is made with its progress shown."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.output.progress import Progress
from hocket.errors import InputError
from hocket.printable import say

if TYPE_CHECKING:
    from hocket.planning.plan import Plan
    from hocket.training.auto_plan.plan_to_train import AskedPlan
    from hocket.training.worker.options import Options

PlanFile = Annotated[
    Path | None,
    typer.Argument(help="A plan file, from `hocket plan`; without one, a plan is made.", show_default=False),
]
PlanOption = Annotated[
    str | None,
    typer.Option(
        "--plan",
        metavar="auto|FILE",
        help="The plan file; or auto, the default without a plan file: profile the job, measure the links and plan, and "
        "keep the results in .hocket beside the job.",
        show_default=False,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "-n",
        "--workers",
        help="Without a plan file: local workers to plan for; by default 2, or as many as torchrun has started.",
        show_default=False,
    ),
]
Replan = Annotated[
    bool, typer.Option("--replan", help="Without a plan file: measure and plan again, whatever is kept.")
]


def named_plan(plan: Path | None, option: str | None) -> Path | str | None:
    """Return the plan of the argument PLAN or of --plan; None if neither is given.

    Raises:
        InputError: both name a plan.
    """
    if plan is not None and option is not None:
        raise InputError("--plan", f"{option}, and {plan} as the plan", "one of the two")
    return plan if option is None else option


@contextmanager
def shown_plan(job: Path, asked: "AskedPlan", options: "Options", json: bool) -> "Iterator[Plan | str | Path]":
    """Yield the plan of a run; while it is made, show the progress and a line for each step.

    Arguments:
        json: True to print the lines on standard error, and to show no progress.

    Raises:
        InputError: see `hocket.training.auto_plan.plan_to_train.plan_to_train`.
    """
    from hocket.training.auto_plan.plan_to_train import plan_to_train
    from hocket.training.worker.ranks import shows_the_run

    out = sys.stderr if json else sys.stdout

    def tell(line: str) -> None:
        # On a terminal the progress bar stands in for sys.stdout, to print above itself. A file gets the line itself.
        say(line, file=sys.stdout if out.isatty() and not json else out)
        out.flush()  # a log shows the line when it is said, not minutes later

    with ExitStack() as files:
        with Progress("planning", not json and asked.plan is None and shows_the_run()) as report:
            plan = files.enter_context(plan_to_train(job, asked, options, tell, report))
        yield plan
