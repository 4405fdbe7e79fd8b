"""`hocket measure-waves`: find the best number of waves by training.

Waves are batches or microbatches that are on the same devices at shifted times (docs/explanation/wavelet.md).
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.output.option_groups import MeasuringWorkers
from hocket.printable import say

if TYPE_CHECKING:
    from hocket.training.calibrate.measure_waves import Waved


@dataclass(frozen=True)
class WaveTrials:
    """Options about the numbers of waves to try, as given on the command line."""

    steps: Annotated[int, typer.Option(help="Training steps for each number of waves.")] = 20
    first: Annotated[
        int | None,
        typer.Option(
            "--first", help="First number of waves to try; by default estimated from the profile.", show_default=False
        ),
    ] = None


def waves(
    job: Annotated[Path, typer.Argument(help="A Python file that defines `job` (a hocket.Job) or `make_job()`.")],
    plan: Annotated[Path, typer.Argument(help="A plan of model_parallel or waves, data_parallel or tick_tock.")],
    trials: WaveTrials,
    workers: MeasuringWorkers,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the plan.")] = Path("waves.yaml"),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document (seconds, unrounded).")] = False,
) -> None:
    """Find the best number of waves by training, and write that plan.

    Waves are batches that train on the same devices at shifted times. With data parallelism, a wave is one microbatch
    on every device, and a second wave (tick_tock) is the most. With model parallelism, a wave is one microbatch that
    passes through all stages.

    The profile gives the largest number of waves that memory, compute and network allow. This number is trained for
    some steps, then one wave fewer each time (Wavelet, appendix B.2). With model parallelism, the search ends when an
    iteration is at most 10 % longer than with one wave. With data parallelism, it ends when two waves train at least
    5 % more samples per second than one wave.

    More waves make the batch larger. The command prints the batch size to set in the job before `hocket train`. Each
    number of waves takes turns with one wave on the same workers, so that both see the same machine load. Trained
    weights are discarded. Keep other programs off the cores.

    Example: hocket measure-waves job.py model_parallel.yaml -o waves.yaml
    """
    from hocket.planning.load import open_plan
    from hocket.training.calibrate.measure_waves import measure_waves
    from hocket.training.train import check_order
    from hocket.training.worker.monitor.display import listener
    from hocket.training.worker.options import INTERRUPTED
    from hocket.util.files import check_output

    check_output(output, "plan", "format: hocket-plan")
    check_order(job, plan, "measure-waves")
    opened = open_plan(plan)
    shown = listener(json)
    try:
        found = measure_waves(
            job,
            opened.plan,
            opened.profile,
            trials.steps,
            shown,
            first=trials.first,
            device=workers.device,
            threads=workers.threads,
        )
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        shown.close()
    if found.waves > 1:
        found.save(output, beside=plan)
    if json:
        from hocket.cli.output.tables import print_json
        from hocket.util.schema import as_data

        told = {"room": as_data(found.room), "tried": [as_data(one) for one in found.tried], "waves": found.waves}
        print_json({**told, "path": str(output) if found.waves > 1 else None})
        return
    _print(found)
    if found.waves == 1:
        print("one wave is best; nothing was written")
        return
    batch = found.plan.batch_size
    print(f"wrote {output}; set batch_size={batch} in the job before `hocket train`")


def _print(found: "Waved") -> None:
    from hocket.cli.output.table import print_table
    from hocket.util.units import show_number, show_seconds

    each = found.plan.batch_size // found.waves
    rows = []
    for one in found.tried:
        if one.iteration_s is None:
            rows.append([str(one.waves), "does not fit", "", ""])
            continue
        pace = show_number(one.waves * each / one.iteration_s)
        rows.append([str(one.waves), show_seconds(one.iteration_s), f"{one.stretch:+.1%}", pace])
    say(f"room for {found.room.waves}: {found.room.why}")
    print_table(
        f"{each} samples a wave", ["waves", "an iteration", "beside one", "samples/s"], rows, right=(0, 1, 2, 3)
    )
