"""SVG elements: numbers, escaped text, axes with round ticks.

Every text goes through `escape`. Coordinates have at most two decimals, so that a report is small, and has the same
bytes each time.
"""

from collections.abc import Iterable
from math import ceil, floor, isfinite, log10

from markupsafe import Markup, escape

from hocket.util.units import show_bytes, show_seconds

NAMESPACE = "http://www.w3.org/2000/svg"


def num(value: float) -> str:
    """Format a coordinate, with two decimals at most and without trailing zeros."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("", "-0") else text


def text(x: float, y: float, content: str, cls: str = "", anchor: str = "") -> str:
    """Return one line of text as SVG.

    Arguments:
        cls: CSS class.
        anchor: "start", "middle" or "end": the part of the text at `x`; empty for "start".
    """
    kind = f' class="{cls}"' if cls else ""
    side = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text{kind}{side} x="{num(x)}" y="{num(y)}">{escape(content)}</text>'


def box(x: float, y: float, width: float, height: float) -> str:
    """Return the path data of a rectangle.

    A path takes half as many characters as a <rect> element.
    """
    return f"M{num(x)} {num(y)}h{num(width)}v{num(height)}h{num(-width)}z"


def through(places: Iterable[tuple[float, float]]) -> str:
    """Return the path data of a line through points (x, y)."""
    return "M" + "L".join(f"{num(x)} {num(y)}" for x, y in places)


def svg(width: float, height: float, parts: Iterable[str], title: str, desc: str = "", cls: str = "") -> Markup:
    """Return a complete <svg> element with its text alternative.

    Arguments:
        parts: SVG elements of the drawing.
        title, desc: text alternative for screen readers.
        cls: CSS class.
    """
    kind = f' class="{cls}"' if cls else ""
    about = f"<desc>{escape(desc)}</desc>" if desc else ""
    head = f'<svg xmlns="{NAMESPACE}"{kind} viewBox="0 0 {num(width)} {num(height)}" role="img">'
    return Markup(f"{head}<title>{escape(title)}</title>{about}{''.join(parts)}</svg>")


def stretched_svg(width: float, height: float, parts: Iterable[str], title: str, cls: str) -> Markup:
    """Return an <svg> element of fixed height that is stretched to any width.

    Arguments:
        parts: SVG elements of the drawing.
        title: text alternative for screen readers.
        cls: CSS class.
    """
    size = f'viewBox="0 0 {num(width)} {num(height)}" height="{num(height)}" preserveAspectRatio="none"'
    head = f'<svg xmlns="{NAMESPACE}" class="{cls}" {size} role="img">'
    return Markup(f"{head}<title>{escape(title)}</title>{''.join(parts)}</svg>")


def ticks(low: float, high: float, wanted: int) -> list[float]:
    """Return about `wanted` round numbers from `low` to `high`."""
    if not (isfinite(low) and isfinite(high)) or high <= low:
        return [low]
    step = _step((high - low) / max(1, wanted), (1, 2, 5))
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def byte_ticks(high: float, wanted: int) -> list[float]:
    """Return at most `wanted` + 1 round numbers of bytes, from 0 to `high`.

    The step is a power of two, so that labels are short.
    """
    if high <= 0:
        return [0.0]
    step = 1.0
    while step * wanted < high:
        step *= 2
    return [k * step for k in range(int(high / step) + 1)]


def _step(rough: float, multiples: tuple[int, ...]) -> float:
    size = 10.0 ** floor(log10(rough))
    return next((m * size for m in multiples if m * size >= rough * (1 - 1e-9)), 10 * size)


def log_ticks(low: float, high: float, fine: bool = False) -> list[float]:
    """Return ticks of a logarithmic axis: 1, 2 and 5 times powers of ten.

    With more than four powers of ten, only these are returned, unless `fine` is true.
    """
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    multiples = (1, 2, 5) if fine or len(powers) <= 4 else (1,)
    return [m * 10.0**k for k in powers for m in multiples if low * (1 - 1e-9) <= m * 10.0**k <= high * (1 + 1e-9)]


def show_bytes_short(amount_bytes: float) -> str:
    """Format bytes for an axis, without trailing zeros."""
    shown, unit = show_bytes(amount_bytes).rsplit(" ", 1)
    return f"{float(shown):g} {unit}"


def show_tick(value_s: float, scale_s: float) -> str:
    """Format a time on an axis.

    Arguments:
        scale_s: length of the axis in seconds; it determines the unit.
    """
    size, unit = (1.0, "s") if scale_s >= 2 else (1e-3, "ms") if scale_s >= 2e-3 else (1e-6, "µs")
    return "0" if value_s == 0 else f"{value_s / size:.6g} {unit}"


def show_time(value_s: float) -> str:
    """Format a duration, with µs for microseconds."""
    return show_seconds(value_s).replace(" us", " µs")
