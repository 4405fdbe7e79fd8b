"""Commands that train: train, demo."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from hocket.cli.train.resume_option import Resume, read_resume

Json = Annotated[bool, typer.Option("--json", help="Print JSON lines: one a step, then the summary.")]


def train(
    job: Annotated[Path, typer.Argument(help="A Python file that defines `job` (a hocket.Job) or `make_job()`.")],
    plan: Annotated[Path, typer.Argument(help="A plan file, from `hocket plan`.")],
    steps: Annotated[int, typer.Option(help="Train until so many steps (batches) are done in all.")] = 100,
    checkpoint: Annotated[Path | None, typer.Option(help="Folder of checkpoints; none are written without it.")] = None,
    every: Annotated[
        int | None, typer.Option(help="Steps between two checkpoints; a tenth of what is to do by default.")
    ] = None,
    keep: Annotated[int, typer.Option(help="How many of the newest checkpoints stay.")] = 3,
    resume: Resume = None,
    on_nan: Annotated[
        str,
        typer.Option(
            help="When a loss or gradient is nan or infinite: stop ends the run and names the place, skip leaves the update out, go continues."
        ),
    ] = "stop",
    device: Annotated[str, typer.Option(help="auto (as the plan's cluster says), cpu or cuda.")] = "auto",
    threads: Annotated[int, typer.Option(help="Threads of each worker on a CPU.")] = 1,
    pin: Annotated[
        bool | None,
        typer.Option(
            "--pin/--no-pin",
            help="Keep each local worker on cores of its own; unasked where they need more than half of the cores.",
            show_default=False,
        ),
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Write the measured trace; Perfetto opens it.")] = None,
    host_link: Annotated[
        str | None,
        typer.Option(
            help="Swap as if a machine's link to its devices were so fast, each way: 2GB/s. All its workers share it."
        ),
    ] = None,
    silence_s: Annotated[float, typer.Option(help="A worker without a sign of life for so long is lost.")] = 60.0,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show whole tracebacks, as --json does, not only your own code's part.")
    ] = False,
    json: Json = False,
) -> None:
    """Train as a plan says. Alone it starts local workers; under torchrun it joins. Ctrl-C saves and leaves with code 130.

    Example: hocket train job.py plan.yaml --steps 100 --checkpoint checkpoints

    A plan that `hocket check` refuses is refused here in the same words, if its profile is at hand.

    On many machines: torchrun --nnodes 2 --nproc-per-node 8 -m hocket train job.py plan.yaml
    """
    from hocket.runtime.train import train as run
    from hocket.runtime.worker.monitor.display import listener
    from hocket.runtime.worker.options import INTERRUPTED
    from hocket.runtime.worker.ranks import shows_the_run
    from hocket.util.units import read_rate

    try:
        summary = run(
            job,
            plan,
            steps=steps,
            listener=listener(json),
            checkpoint=str(checkpoint) if checkpoint else None,
            every=every,
            keep=keep,
            resume=read_resume(resume),
            on_nan=on_nan,
            device=device,
            threads=threads,
            pin=pin,
            trace=str(trace) if trace else None,
            host_link_bytes_per_s=read_rate(host_link, "--host-link") if host_link else None,
            silence_s=silence_s,
            debug=debug or json,
        )
    except KeyboardInterrupt as error:
        if shows_the_run():
            print(str(error) or "interrupted", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    # torchrun ends all workers when one leaves with another code than 0: only the one that has shown everything does.
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
    """Profile, plan, prove, simulate, train and compare a small GPT on real text with local workers; writes report.html."""
    from hocket.cli.train.demo import run_demo

    run_demo(text, output, workers, steps, json)
