"""`hocket compare`: a predicted trace beside a measured trace."""

from collections.abc import Callable, Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.output.options import Json
from hocket.printable import say

if TYPE_CHECKING:
    from hocket.program.trace.error_parts import Parts
    from hocket.program.trace.trace import Trace


def compare(
    predicted: Annotated[Path, typer.Argument(help="Trace of a simulation (hocket simulate --trace).")],
    measured: Annotated[Path, typer.Argument(help="Trace of a run (hocket train --trace).")],
    json: Json = False,
) -> None:
    """Compare a predicted trace with a measured trace, instruction by instruction.

    Traces of plans with other batch or microbatch sizes are refused.
    """
    from hocket.cli.output.table import in_bytes, in_seconds, print_table
    from hocket.cli.output.tables import print_json
    from hocket.errors import InputError
    from hocket.program.trace.chrome import read_trace
    from hocket.program.trace.compare import ComparedFigure
    from hocket.program.trace.compare import compare as compare_traces
    from hocket.util.schema import as_data
    from hocket.util.units import show_count

    believed, real = read_trace(predicted), read_trace(measured)
    if (believed.meta.get("source"), real.meta.get("source")) == ("measured", "simulated"):
        raise InputError(
            str(predicted),
            "a measured trace as the first file",
            "the predicted trace first, then the measured one",
            "Swap the two files.",
        )
    for key in ("batch_size", "microbatch_size"):
        if _differ(believed, real, key):
            expected = f"{believed.meta[key]!r}, as in {predicted}"
            raise InputError(f"{measured}: {key}", repr(real.meta[key]), expected, "Give two traces of one plan.")
    found = compare_traces(believed, real)
    if json:
        print_json(as_data(found) | {"parts": found.parts.as_data() if found.parts is not None else None})
        return

    def table(
        title: str,
        part: Sequence[ComparedFigure],
        in_unit: Callable[[Sequence[float]], tuple[str, list[str]]],
        means: bool = False,
    ) -> None:
        unit, cells = in_unit([value for r in part for value in (r.predicted, r.measured)])
        errors = ["-" if isnan(r.relative_error) else f"{r.relative_error:+.1%}" for r in part]
        columns = ["what", f"predicted ({unit})", f"measured ({unit})", "error", *(["times"] if means else [])]
        rows = [
            [r.what, *cells[2 * k : 2 * k + 2], error, *([f"{r.count:,}"] if means else [])]
            for k, (r, error) in enumerate(zip(part, errors, strict=True))
        ]
        print_table(title, columns, rows, right=range(1, len(columns)))

    table("prediction and measurement", (found.update, *found.kinds), in_seconds, means=True)
    if found.parts is not None:
        print_parts(found.parts)
    table("single instructions that differ most", found.largest, in_seconds)
    if found.memory:
        table("peak memory", found.memory, in_bytes)
    else:
        print("  peak memory: not in both traces")
    sides = (("measurement", "simulated", found.later_measured), ("prediction", "measured", found.later_predicted))
    for one, other, later in sides:
        if later:
            print(f"  {show_count(later, 'instruction')} of the {one} lie beyond the {other} periods")
    if found.only_predicted or found.only_measured:
        print(
            f"  {show_count(found.only_predicted, 'instruction')} only in the prediction, {found.only_measured} only "
            "in the measurement"
        )
    excerpt = believed.meta.get("excerpt")
    if isinstance(excerpt, str):
        say(f"  the prediction shows an excerpt, {excerpt[:80]}; its update time is for the whole batch")
    if _differ(believed, real, "profile_digest"):
        print("  the prediction is from another profile than that of the plan that ran")
    left_out = real.meta.get("left_out")
    if isinstance(left_out, int) and left_out:
        print(f"  the measured run was longer: its first {show_count(left_out, 'instruction')} were not kept")


def _differ(one: "Trace", other: "Trace", key: str) -> bool:
    """True if two traces record different values; traces of earlier versions record no sizes and no profile."""
    return key in one.meta and key in other.meta and one.meta[key] != other.meta[key]


def print_parts(parts: "Parts") -> None:
    """Print the parts of an update's prediction error, one per row."""
    from hocket.cli.output.table import in_seconds, print_table

    unit, cells = in_seconds([seconds for _, seconds, _ in parts.rows])
    rows = [[name, cell, f"{share:+.1%}"] for (name, _, share), cell in zip(parts.rows, cells, strict=True)]
    print_table("why an update took longer (+) or less (-)", ["part", f"seconds ({unit})", "error"], rows, right=(1, 2))
