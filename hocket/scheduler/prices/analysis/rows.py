"""Row: one figure of the analysis of chapter 6, as recomputed, beside the published one where it is known."""

from collections.abc import Iterable
from dataclasses import dataclass

US = ("us-", "us_")


@dataclass(frozen=True)
class PriceFigure:
    """One figure.

    Attributes:
        source: table or figure of chapter 6.
        what: which of its figures, such as ("aws", "us-east-1", "v100").
        value: recomputed.
        published: in the dissertation, or in the public analysis where `note` says so; None where only a drawing shows it.
        note: what to know about it.
    """

    source: str
    what: tuple[str, ...]
    value: float
    published: float | None = None
    note: str = ""


def text(rows: Iterable[PriceFigure]) -> str:
    """As lines, one for each row, under a line for each source."""
    lines: list[str] = []
    source = ""
    for row in rows:
        if row.source != source:
            source = row.source
            lines.append(f"{source}\n")
        beside = f"   published {row.published:g}" if row.published is not None else ""
        lines.append(f"  {'  '.join(row.what):<66} {row.value:8.3f}{beside}{'   ' + row.note if row.note else ''}\n")
    return "".join(lines)
