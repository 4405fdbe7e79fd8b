"""`hocket train` and `hocket demo`."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hocket.cli.train.plan_option import PlanFile, PlanOption, Replan, Workers, named_plan, shown_plan
from hocket.cli.train.resume_option import Resume, read_resume

Json = Annotated[bool, typer.Option("--json", help="Print JSON lines: one per step, then the summary.")]


def train(
    job: Annotated[Path, typer.Argument(help="A Python file that defines `job` (a hocket.Job) or `make_job()`.")],
    plan: PlanFile = None,
    steps: Annotated[int, typer.Option(help="Total optimizer updates, including updates before a resume.")] = 100,
    workers: Workers = None,
    plan_option: PlanOption = None,
    replan: Replan = False,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints; without it none are written.")
    ] = None,
    every: Annotated[int | None, typer.Option(help="Steps between checkpoints; by default a tenth of the run.")] = None,
    keep: Annotated[int, typer.Option(help="Number of checkpoints to keep.")] = 3,
    async_save: Annotated[
        bool,
        typer.Option(
            "--async-save/--no-async-save",
            help="Write checkpoints while the next steps run, from a copy of the state in host memory.",
        ),
    ] = True,
    resume: Resume = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="Initial weights: a .safetensors file, a state dict (.pt), or a Hugging Face folder."),
    ] = None,
    on_nan: Annotated[
        str,
        typer.Option(
            help="If a loss or gradient is nan or infinite: stop ends the run and names the place, skip skips the update, "
            "go continues."
        ),
    ] = "stop",
    device: Annotated[str, typer.Option(help="auto (as the plan's cluster says), cpu or cuda.")] = "auto",
    threads: Annotated[int, typer.Option(help="Threads of each worker on a CPU.")] = 1,
    loaders: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Processes of each worker that read its samples ahead; 0: the worker reads them. Default: as the plan says.",
            show_default=False,
        ),
    ] = None,
    pin: Annotated[
        bool | None,
        typer.Option(
            "--pin/--no-pin",
            help="Pin each local worker to its own cores; default: if the workers need more than half of the cores.",
            show_default=False,
        ),
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Write the measured trace; Perfetto opens it.")] = None,
    host_link: Annotated[
        str | None,
        typer.Option(
            help="Simulate a host link of this bandwidth in each direction, such as 2GB/s, shared by all workers of a machine."
        ),
    ] = None,
    silence_s: Annotated[
        float, typer.Option(help="Seconds without a heartbeat after which a worker counts as lost.")
    ] = 60.0,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show full tracebacks, not only the frames of your own code.")
    ] = False,
    log: Annotated[
        list[str] | None,
        typer.Option(
            "--log",
            help="Write the figures of each step: csv:FILE, tensorboard:DIR, wandb:DIR (offline) or mlflow:DIR. Repeatable.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Train a job with a plan, on local workers or under torchrun.

    Ctrl-C saves a checkpoint and exits with code 130.

    Example: hocket train job.py plan.yaml --steps 100 --checkpoint checkpoints

    Without a plan file: hocket train job.py -n 2

    The job is then profiled, the links between the workers are measured, and the fastest plan is made. The next run of
    the same job begins at once. Under torchrun on one machine, the first worker does this for all.

    A plan that `hocket check` refuses is refused with the same message, if its profile is available.

    On many machines: torchrun --nnodes 2 --nproc-per-node 8 -m hocket train job.py plan.yaml
    """
    from hocket.training.auto_plan.plan_to_train import AskedPlan
    from hocket.training.callbacks.logger import logger
    from hocket.training.train import check_order, checked_options
    from hocket.training.train import train as run
    from hocket.training.worker.monitor.display import listener
    from hocket.training.worker.options import INTERRUPTED
    from hocket.training.worker.ranks import shows_the_run
    from hocket.util.units import read_rate

    options: dict[str, Any] = {
        "checkpoint": str(checkpoint) if checkpoint else None,
        "every": every,
        "keep": keep,
        "async_save": async_save,
        "resume": read_resume(resume),
        "weights": str(weights) if weights else None,
        "on_nan": on_nan,
        "device": device,
        "threads": threads,
        "loaders": loaders,
        "pin": pin,
        "trace": str(trace) if trace else None,
        "host_link_bytes_per_s": None if host_link is None else read_rate(host_link, "--host-link"),
        "silence_s": silence_s,
        "debug": debug or json,
    }
    loggers = tuple(map(logger, log or ()))
    asked = AskedPlan(named_plan(plan, plan_option), workers, replan)
    if asked.plan is not None:
        check_order(job, asked.plan)
    try:
        with shown_plan(job, asked, checked_options(steps, options), json) as planned:
            summary = run(job, planned, steps=steps, listener=listener(json), callbacks=loggers, **options)
    except KeyboardInterrupt as error:
        if shows_the_run():
            print(str(error) or "interrupted", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    # torchrun stops all workers when one exits with a code other than 0, so only the worker that prints the results
    # does.
    if summary.stopped and shows_the_run():
        raise typer.Exit(INTERRUPTED)


def demo(
    text: Annotated[Path | None, typer.Option(help="A text to train on; by default Python's own source files.")] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for profile, plans, traces and report.html.")
    ] = Path("hocket-demo"),
    workers: Annotated[int, typer.Option("-n", "--workers", help="Local workers.")] = 2,
    steps: Annotated[int, typer.Option(help="Steps to train under each strategy.")] = 40,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document at the end.")] = False,
) -> None:
    """Profile, plan, prove, simulate, train and compare a small GPT on real text.

    It uses local workers, and writes report.html.
    """
    from hocket.cli.train.demo import run_demo

    run_demo(text, output, workers, steps, json)
