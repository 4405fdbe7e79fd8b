"""Output of `hocket simulate` on overlap of backwards and gradient all-reduces."""

from typing import TYPE_CHECKING

from hocket.cli.output.table import in_seconds, print_table
from hocket.util.units import show_ranges, show_seconds

if TYPE_CHECKING:
    from hocket.program.trace.overlap import Overlap

MOST_SHOWN = 8  # maximum number of devices in the table


def overlap_row(found: "Overlap | None") -> list[list[str]]:
    """Return one row (name, text) with the gain by overlap.

    Arguments:
        found: overlap in a simulated plan; None gives no row: the plan has no gradient all-reduces.
    """
    if found is None:
        return []
    gain_s = found.apart_iteration_s - found.iteration_s
    share = gain_s / found.apart_iteration_s if found.apart_iteration_s > 0 else 0.0
    told = f"{show_seconds(found.apart_iteration_s)}; overlap {'gains' if gain_s > 0 else 'loses'} {abs(share):.1%}"
    if abs(share) < 5e-4:
        told = "equally long: overlap gains nothing"
    return [["iteration without overlap", told]]


def print_overlap(found: "Overlap | None") -> None:
    """Print the overlap of backwards and gradient all-reduces, a row per device.

    The rows are the first replica of every stage, at most `MOST_SHOWN`. Without gradient all-reduces (None) nothing is
    printed.
    """
    if found is None:
        return
    devices = found.devices[:MOST_SHOWN]
    figures = [
        (side.backward_s, side.sums_s, side.sums_s - side.exposed_s, side.exposed_s, side.seconds, one.apart.seconds)
        for one in devices
        for side in (one.beside,)
    ]
    unit, cells = in_seconds([value for row in figures for value in row])
    rows = [
        [str(one.beside.device), show_ranges(sorted({p.stage for p in one.beside.pieces})), *cells[6 * k : 6 * k + 6]]
        for k, one in enumerate(devices)
    ]
    names = ("backward", "sums", "hidden", "exposed", "with overlap", "without")
    title = "the last backward of an iteration and its gradient sums: hidden behind computation, and exposed"
    columns = ["device", "stages", *(f"{name} ({unit})" for name in names)]
    print_table(title, columns, rows, right=(0, 2, 3, 4, 5, 6, 7), drop=(4, 5))
    if len(found.devices) > len(devices):
        print(f"  {len(found.devices) - len(devices)} more devices are in --json and in the report")
