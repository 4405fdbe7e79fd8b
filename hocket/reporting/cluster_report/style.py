"""Colours and dashes of cluster charts, for policies, worker types and entities.

A policy, type or entity has the same look on the whole page.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup, escape

from hocket.reporting.charts.palette import CURVES
from hocket.reporting.charts.svg import NAMESPACE

# Order in which areas use the colours of CURVES: purple, olive, teal, ... They start with colours that lines use last.
_AREAS = (3, 5, 7, 4, 6, 1, 0, 2)


@dataclass(frozen=True)
class Look:
    """Colour and dash of a line; an area uses only the colour."""

    colour: str
    dash: str = ""

    @property
    def stroke(self) -> str:
        """Stroke attributes of an SVG path."""
        return f'stroke="{self.colour}"' + (f' stroke-dasharray="{self.dash}"' if self.dash else "")


def line_look(place: int) -> Look:
    """Return the look of the policy at index `place`; the first 64 looks differ."""
    count = len(CURVES)
    return Look(CURVES[place % count][0], CURVES[(place + place // count) % count][1])


def area_look(place: int) -> Look:
    """Return the look of the worker type or entity at index `place`.

    Neighbouring looks differ for colour-blind readers too.
    """
    return Look(CURVES[_AREAS[place % len(_AREAS)]][0])


def legend(items: Iterable[tuple[str, Look]], lines: bool) -> Markup:
    """Return a legend as HTML: each name with a sample of its line or area.

    Arguments:
        lines: True for samples of lines, False for areas.
    """
    parts = []
    for name, look in items:
        if lines:
            piece = f'<path class="loss" {look.stroke} d="M0 6h26"/>'
            sample = f'<svg xmlns="{NAMESPACE}" class="sample" viewBox="0 0 26 12" aria-hidden="true">{piece}</svg>'
        else:
            sample = f'<i style="background:{look.colour}"></i>'
        parts.append(f"<span>{sample}{escape(name)}</span>")
    return Markup(f'<p class="legend">{"".join(parts)}</p>')
