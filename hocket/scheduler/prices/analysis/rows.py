"""Rows of the price analysis: recomputed and published figures."""

from collections.abc import Iterable
from dataclasses import dataclass

US = ("us-", "us_")


@dataclass(frozen=True)
class PriceFigure:
    """Recomputed figure, with the published one if known.

    Attributes:
        source: table or figure in chapter 6 of Narayanan's dissertation.
        what: labels of the figure, such as ("aws", "us-east-1", "v100").
        value: recomputed value.
        published: value in the dissertation, or in the public analysis where `note` says so; None if only a plot
            shows it.
        note: remark.
    """

    source: str
    what: tuple[str, ...]
    value: float
    published: float | None = None
    note: str = ""


def text(rows: Iterable[PriceFigure]) -> str:
    """Text table: one line per row, with a heading per source."""
    lines: list[str] = []
    source = ""
    for row in rows:
        if row.source != source:
            source = row.source
            lines.append(f"{source}\n")
        beside = f"   published {row.published:g}" if row.published is not None else ""
        lines.append(f"  {'  '.join(row.what):<66} {row.value:8.3f}{beside}{'   ' + row.note if row.note else ''}\n")
    return "".join(lines)
