"""`hocket verify`."""

from pathlib import Path
from typing import Annotated

import typer


def verify(
    job: Annotated[Path, typer.Argument(help="A Python file that defines `job` (a hocket.Job) or `make_job()`.")],
    plan: Annotated[Path, typer.Argument(help="A plan file, from `hocket plan`.")],
    steps: Annotated[int, typer.Option(help="Steps to train on both sides.", min=1)] = 3,
    device: Annotated[str, typer.Option(help="auto (as the plan's cluster says), cpu or cuda.")] = "auto",
    threads: Annotated[int, typer.Option(help="Threads of each worker on a CPU.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Train a few steps with a plan and with a plain loop, and compare losses and weights.

    Local workers train with the plan. A single process trains the undivided model, without any part of the engine, with
    the plan's update rule. Nothing is kept. The exit code is 1 if losses or weights differ by more than rounding.

    Example: hocket verify job.py plan.yaml --steps 5
    """
    from hocket.cli.output.tables import print_json
    from hocket.planning.plan import Plan
    from hocket.printable import say
    from hocket.training.verify.verify import verify as run
    from hocket.util.schema import as_data

    found = run(job, Plan.read(plan), steps=steps, device=device, threads=threads)
    if json:
        print_json({**as_data(found), "good": found.good})
    else:
        say(str(found))
    if not found.good:
        raise typer.Exit(1)
