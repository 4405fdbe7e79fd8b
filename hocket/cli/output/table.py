"""Text tables that fit the terminal, with one unit per column.

Numbers are never broken across lines. This file turns text into lines and imports nothing that is slow to load.
"""

import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from math import isfinite

from hocket.printable import printable

_INDENT, _GAP, _NARROW_GAP = "  ", 3, 2
_NO_TERMINAL = 140
_LEAST = 8  # minimum width of a text column, even on a narrow terminal
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_BYTES = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))


def line_width() -> int:
    """Return the line width in characters: the terminal's, or COLUMNS, or 140."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size((_NO_TERMINAL, 24)).columns
    return _NO_TERMINAL


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[int] = (),
    drop: Sequence[int] = (),
    width: int | None = None,
) -> list[str]:
    """Print a table on standard output.

    Arguments:
        right: indices of the columns of numbers, which are aligned to the right and never broken.
        drop: indices of the columns to leave out, in this order, until the rest fits. If the table is still too wide,
            texts in the widest text columns are folded: broken into several lines.
        width: line width in characters; `line_width()` by default.

    Returns:
        The names of the columns left out.
    """
    width = width or line_width()
    title, columns, rows = (
        printable(title),
        [printable(name) for name in columns],
        [[printable(c) for c in row] for row in rows],
    )
    natural = [max(_cells(cell) for cell in (column, *(row[k] for row in rows))) for k, column in enumerate(columns)]
    shown = list(range(len(columns)))
    gap = _GAP if _total(natural, shown, _GAP) <= width else _NARROW_GAP
    for column in drop:
        if _total(natural, shown, gap) > width:
            shown.remove(column)
    widths = _folded(natural, [k for k in shown if k not in right], shown, gap, width)
    for line in textwrap.wrap(title, width) or [""]:
        print(line)
    print()
    for line in _lines(columns, shown, widths, right, gap):
        print(line)
    print(_INDENT[1:] + "─" * (_total(widths, shown, gap) - 1))
    for row in rows:
        for line in _lines(row, shown, widths, right, gap):
            print(line)
    print()
    return [column for k, column in enumerate(columns) if k not in shown]


def print_legend(meanings: Mapping[str, str], columns: Sequence[str], width: int | None = None) -> None:
    """Print the meaning of each column that is shown.

    Arguments:
        meanings: meaning by column name without unit, such as "memory".
        columns: names of the shown columns with units, such as "memory (GiB)".
        width: line width in characters; `line_width()` by default.
    """
    names = {name.partition(" (")[0] for name in columns}
    told = "; ".join(f"{name}: {meaning}" for name, meaning in meanings.items() if name in names)
    for line in textwrap.wrap(told, (width or line_width()) - 2):
        print(f"  {line}")


CHOSEN = " ←"
"""Mark after the name of the chosen row."""


def print_chosen(iterations_s: Sequence[float], tie: float, width: int | None = None) -> None:
    """Explain the arrow and the order of a table of plans, if it has several rows.

    Arguments:
        iterations_s: iteration seconds of each row; the first row is the chosen plan.
        tie: relative difference in time up to which plans count as equally fast.
        width: line width in characters; `line_width()` by default.
    """
    if len(iterations_s) < 2:
        return
    why = "the fastest"
    if min(iterations_s) < iterations_s[0]:
        why = f"the simplest (fewest stages, then devices) of the plans within {tie:.0%} of the fastest, which count as equal"
    told = f"{CHOSEN.strip()}: the chosen plan, {why}; the others by time"
    for line in textwrap.wrap(told, (width or line_width()) - 2):
        print(f"  {line}")


def in_seconds(values: Sequence[float]) -> tuple[str, list[str]]:
    """Choose one unit of time for a column; return the unit, and each value formatted without unit.

    The unit is that of the median. Values that are nan or infinite become '-'.

    Arguments:
        values: seconds.
    """
    return _in_one_unit(values, _SECONDS, 3)


def in_bytes(values: Sequence[float]) -> tuple[str, list[str]]:
    """Choose one unit of bytes for a column; return the unit, and each value formatted without unit.

    The unit is that of the median. Values that are nan or infinite become '-'.

    Arguments:
        values: bytes.
    """
    return _in_one_unit(values, _BYTES, 4)


def _in_one_unit(values: Sequence[float], units: Sequence[tuple[float, str]], digits: int) -> tuple[str, list[str]]:
    known = sorted(abs(value) for value in values if isfinite(value) and value)
    middle = known[len(known) // 2] if known else units[-1][0]
    size, unit = next(((size, unit) for size, unit in units if middle >= size), units[-1])
    return unit, [_figure(value / size, digits) for value in values]


def _figure(value: float, digits: int) -> str:
    """Format a number without exponent; '-' if it is not finite.

    It has `digits` significant digits, and at most three decimals.
    """
    if not isfinite(value):
        return "-"
    if value == 0:
        return "0"
    before = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    shown = f"{value:,.{min(3, max(0, digits - before))}f}"
    return shown if shown.strip("-0.,") else "<0.001"


def _cells(text: str) -> int:
    """Return the width of a text on a terminal, in character cells."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in text)


def _total(widths: Sequence[int], shown: Sequence[int], gap: int) -> int:
    return len(_INDENT) + sum(widths[k] for k in shown) + gap * (len(shown) - 1)


def _folded(natural: Sequence[int], texts: Sequence[int], shown: Sequence[int], gap: int, width: int) -> list[int]:
    """Narrow text columns, the widest first, until the table fits.

    No column becomes narrower than `_LEAST`, so the table may still be too wide.

    Arguments:
        natural: width of each column without folding, in character cells.
        texts: indices of the columns that may be narrowed.
        shown: indices of the columns that are printed.
        gap: cells between two columns.
        width: line width in cells.

    Returns:
        Width of every column in character cells. Columns that are not printed keep their natural width.
    """
    widths = list(natural)
    while _total(widths, shown, gap) > width:
        widest = max(texts, key=lambda k: widths[k], default=None)
        if widest is None or widths[widest] <= _LEAST:
            break
        widths[widest] -= 1
    return widths


def _lines(
    row: Sequence[str], shown: Sequence[int], widths: Sequence[int], right: Sequence[int], gap: int
) -> list[str]:
    """Format a row as lines: as many as its cell with the most folded lines needs."""
    cells = [textwrap.wrap(row[k], widths[k]) if _cells(row[k]) > widths[k] else [row[k]] for k in shown]
    found = []
    for at in range(max(len(cell) for cell in cells)):
        parts = []
        for k, cell in zip(shown, cells, strict=True):
            text = cell[at] if at < len(cell) else ""
            room = " " * (widths[k] - _cells(text))
            parts.append(room + text if k in right else text + room)
        found.append((_INDENT + (" " * gap).join(parts)).rstrip())
    return found
