"""`hocket cluster generate`: random workloads."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.cluster.policy_options import Table
from hocket.cli.output.options import Json

if TYPE_CHECKING:
    from hocket.scheduler.model.throughputs import ThroughputTable
    from hocket.scheduler.simulation.trace_generator import Draws
    from hocket.scheduler.simulation.workload import Workload

RATES = (1e-6, 1e6)  # jobs an hour
_RATE = 4.0  # default, jobs an hour


class TraceKind(StrEnum):
    """Kinds of generated workloads, as in section 5.7.1 of the dissertation (Gavel)."""

    SINGLE = "continuous-single"
    MULTIPLE = "continuous-multiple"
    STATIC = "static-single"
    STATIC_MULTIPLE = "static-multiple"

    @property
    def continues(self) -> bool:
        """True if jobs arrive over time; False if all arrive at time 0."""
        return self in (TraceKind.SINGLE, TraceKind.MULTIPLE)


def kind_of(text: str, place: str) -> TraceKind:
    """Return the kind of workload with a name, such as "continuous-single".

    Arguments:
        place: option or argument that an error names.

    Raises:
        InputError: an unknown name; the error suggests the nearest name.
    """
    from hocket.errors import InputError, nearest

    names = [kind.value for kind in TraceKind]
    if text not in names:
        raise InputError(place, repr(text), f"one of {', '.join(names)}", nearest(text, names))
    return TraceKind(text)


def generate(
    kind: Annotated[
        str,
        typer.Argument(
            help=f"{', '.join(TraceKind)}. Continuous: jobs arrive over time; static: all at the start. Multiple: some jobs have several workers."
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the jobs (JSON).")],
    jobs: Annotated[int, typer.Option("--jobs", help="Number of jobs.")] = 1000,
    rate: Annotated[
        float | None,
        typer.Option("--rate", help=f"Continuous kinds: arrival rate in jobs per hour; {_RATE:g} by default."),
    ] = None,
    priorities: Annotated[bool, typer.Option(help="Give a fifth of the jobs five times the weight.")] = False,
    slos: Annotated[bool, typer.Option(help="Give each job an SLO of 1.2, 2 or 10 times its duration.")] = False,
    throughputs: Table = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    json: Json = False,
) -> None:
    """Generate a random workload.

    Jobs are drawn as in section 5.7.1 of the dissertation (Gavel).

    Example: hocket cluster generate continuous-single --rate 5.6 --jobs 1000 -o jobs.json
    """
    from hocket.cli.cluster.policy_options import by_options, check_outputs, within
    from hocket.cli.output.tables import print_json
    from hocket.errors import InputError
    from hocket.scheduler.readers import read_throughputs
    from hocket.scheduler.simulation.trace_generator import Draws
    from hocket.scheduler.simulation.workload import MOST_JOBS, as_text
    from hocket.util.files import write_atomic
    from hocket.util.units import show_count

    within("--jobs", jobs, 1, MOST_JOBS, "jobs")
    drawing = kind_of(kind, "KIND")
    if rate is not None and not drawing.continues:
        step = "Leave --rate out, or choose a continuous kind."
        raise InputError("--rate", f"{rate:g}", f"none for {drawing}, where all jobs arrive at time 0", step)
    per_hour = _RATE if rate is None else rate
    within("--rate", per_hour, *RATES, "jobs an hour")
    check_outputs({"--output": output}, (throughputs,))
    with by_options():
        draws = Draws(priorities=priorities, slos=slos)
        found = drawn(drawing, read_throughputs(throughputs), jobs, per_hour, seed, draws)
    write_atomic(output, as_text(found))
    if json:
        print_json({"output": str(output), "jobs": len(found.jobs), "origin": found.origin})
        return
    print(f"wrote {output}: {show_count(len(found.jobs), 'job')}; next: hocket cluster simulate {output} WORKERS.yaml")


def drawn(
    kind: TraceKind,
    table: "ThroughputTable",
    jobs: int,
    per_hour: float,
    seed: int,
    draws: "Draws | None" = None,
) -> "Workload":
    """Generate a random workload.

    A shorter workload with the same seed is a prefix of a longer one. Durations are drawn for V100s, or for the
    table's first worker type if it has no V100s.

    Arguments:
        table: throughputs by job type and worker type.
        jobs: number of jobs.
        per_hour: arrival rate of a continuous workload, in jobs an hour.
        draws: distributions to draw from; `kind` replaces its choice of jobs with several workers.
    """
    from dataclasses import replace

    from hocket.scheduler.simulation.trace_generator import Draws, continuous, static

    draws = replace(draws or Draws(), multiple=kind in (TraceKind.MULTIPLE, TraceKind.STATIC_MULTIPLE))
    draws = draws if draws.reference in table.types else replace(draws, reference=table.types[0])
    return continuous(table, jobs, per_hour, seed, draws) if kind.continues else static(table, jobs, seed, draws)
