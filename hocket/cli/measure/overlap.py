"""`hocket measure-overlap`: contention of computation and all-reduces."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hocket.cli.output.option_groups import MeasuringWorkers


def overlap(
    job: Annotated[Path, typer.Argument(help="A Python file that defines `job` (a hocket.Job) or `make_job()`.")],
    plan: Annotated[Path, typer.Argument(help="A data-parallel plan, from `hocket plan --strategy data_parallel`.")],
    workers: MeasuringWorkers,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the cluster.")] = Path("cluster.yaml"),
    draws: Annotated[int, typer.Option(min=1, help="Random draws of buckets and threads.")] = 16,
    steps: Annotated[int, typer.Option(min=1, help="Training steps per draw.")] = 12,
    communication: Annotated[
        list[int] | None,
        typer.Option(
            "--communication-threads",
            "-r",
            help="Communication threads per bucket to try (on a GPU: NCCL CTAs); repeatable; default 1 to 4.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document (seconds, bytes, unrounded).")] = False,
) -> None:
    """Measure how much computation and gradient all-reduces slow each other down.

    The job is trained with random buckets and threads, after one run with a single bucket for each number of threads. A
    contention model is fitted to the measurements (LIBRA, section III) and written to a cluster file. This takes (draws
    + numbers of threads) x (steps + 2) training steps.

    The machine must be idle otherwise, and a backward should take at least about ten milliseconds. A model that does
    not predict the measured backwards is not written. With the new cluster file, `hocket plan` chooses buckets and
    their communication threads.

    Example: hocket measure-overlap job.py plan.yaml -o cluster.yaml
    """
    from hocket.planning.plan import Plan
    from hocket.training.calibrate.buckets.measure import check_good, cluster_of, measure_overlap, with_overlap
    from hocket.training.calibrate.buckets.random_buckets import BucketSampling
    from hocket.training.train import check_order
    from hocket.training.worker.monitor.display import listener
    from hocket.training.worker.options import INTERRUPTED
    from hocket.util.files import check_signed, place_to_write, signed, write_atomic

    place_to_write(output)
    check_signed(output, "cluster that hocket has measured")
    drawing = BucketSampling(draws, steps, tuple(sorted(set(communication or (1, 2, 3, 4)))), seed)
    check_order(job, plan, "measure-overlap")
    read = Plan.read(plan)
    cluster_of(read, output)
    shown = listener(json)
    try:
        found = measure_overlap(job, read, drawing, shown, device=workers.device, threads=workers.threads)
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        shown.close()
    if found is None:
        return
    if not json:
        _print(found)
    check_good(found)
    cluster = with_overlap(read, found)
    write_atomic(output, signed(cluster.to_yaml(), "hocket overlap"))
    if json:
        from hocket.cli.output.tables import print_json

        print_json({**_as_data(found), "path": str(output)})
        return
    print(f"wrote {output}; with it, `hocket plan` chooses buckets and their communication threads")


def _as_data(found: Any) -> dict[str, Any]:
    from hocket.util.schema import as_data

    fitted = found.fitted
    errors = {name: getattr(fitted, name) for name in ("computed_error", "beside_error", "alone_error")}
    runs = {name: [run._asdict() for run in getattr(found, name)] for name in ("runs", "held_out")}
    return {"overlap": as_data(fitted.model), "backward_s": found.backward_s, **errors, **runs}


def _print(found: Any) -> None:
    from statistics import mean

    from hocket.cli.output.table import print_table

    model = found.fitted.model
    rows = [
        [str(r), f"{model.share(r):.1%}", f"{model.beside.at(r) / 1e6:.1f}", f"{model.alone.at(r) / 1e6:.1f}"]
        for r in model.threads
    ]
    title = f"{model.workers} workers, start-up of an all-reduce {model.startup_s * 1e3:.2f} ms"
    print_table(title, ["threads", "computation keeps", "MB/s beside it", "MB/s alone"], rows, right=(0, 1, 2, 3))
    fitted = found.fitted
    print(
        f"  model error: {fitted.computed_error:.1%} of computation, {fitted.beside_error:.1%} of all-reduces beside "
        f"it, {fitted.alone_error:.1%} of all-reduces alone"
    )
    for name, runs in (("draws", found.runs), ("draws that were held out of the fit", found.held_out)):
        if runs:
            errors = [abs(run.error) for run in runs]
            print(f"  model error: {mean(errors):.1%} of backwards in {len(runs)} {name}, at most {max(errors):.1%}")
