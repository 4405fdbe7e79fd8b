"""Looks of cluster charts: which colour and dash a policy, a type of workers or an entity has on the whole page."""

from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup, escape

from hocket.reporting.charts.palette import CURVES
from hocket.reporting.charts.svg import NAMESPACE

# Places among the colours: purple, olive, teal, ...; the first of them are the last that lines take.
_AREAS = (3, 5, 7, 4, 6, 1, 0, 2)


@dataclass(frozen=True)
class Look:
    """The colour and the dash of a line; an area has the colour."""

    colour: str
    dash: str = ""

    @property
    def stroke(self) -> str:
        """Stroke attributes of a path."""
        return f'stroke="{self.colour}"' + (f' stroke-dasharray="{self.dash}"' if self.dash else "")


def line_look(place: int) -> Look:
    """The look of the so-many-th policy: no two of the first 64 are alike."""
    count = len(CURVES)
    return Look(CURVES[place % count][0], CURVES[(place + place // count) % count][1])


def area_look(place: int) -> Look:
    """Look of a worker type or entity by number; neighbours differ for colour-blind readers too."""
    return Look(CURVES[_AREAS[place % len(_AREAS)]][0])


def legend(items: Iterable[tuple[str, Look]], lines: bool) -> Markup:
    """Names with a piece of their line, or of their area."""
    parts = []
    for name, look in items:
        if lines:
            piece = f'<path class="loss" {look.stroke} d="M0 6h26"/>'
            sample = f'<svg xmlns="{NAMESPACE}" class="sample" viewBox="0 0 26 12" aria-hidden="true">{piece}</svg>'
        else:
            sample = f'<i style="background:{look.colour}"></i>'
        parts.append(f"<span>{sample}{escape(name)}</span>")
    return Markup(f'<p class="legend">{"".join(parts)}</p>')
