"""Small pieces of SVG: numbers, escaping, axes with round ticks.

Rules of this file: every text goes through `escape`; coordinates have two decimals at most, so that a report stays small
and is the same to the byte each time.
"""

from collections.abc import Iterable
from math import ceil, floor, isfinite, log10

from markupsafe import Markup, escape

from hocket.util.units import show_bytes, show_seconds

NAMESPACE = "http://www.w3.org/2000/svg"


def num(value: float) -> str:
    """A coordinate, as short as it can be."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("", "-0") else text


def text(x: float, y: float, content: str, cls: str = "", anchor: str = "") -> str:
    """One line of text as SVG."""
    kind = f' class="{cls}"' if cls else ""
    side = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text{kind}{side} x="{num(x)}" y="{num(y)}">{escape(content)}</text>'


def box(x: float, y: float, width: float, height: float) -> str:
    """The path of a rectangle: half as long as a <rect>."""
    return f"M{num(x)} {num(y)}h{num(width)}v{num(height)}h{num(-width)}z"


def through(places: Iterable[tuple[float, float]]) -> str:
    """The path of a line from place to place."""
    return "M" + "L".join(f"{num(x)} {num(y)}" for x, y in places)


def svg(
    width: float, height: float, parts: Iterable[str], title: str, desc: str = "", cls: str = "", stretch: bool = False
) -> Markup:
    """A whole drawing with its text alternative; `stretch` lets its width grow alone."""
    ratio = f' height="{num(height)}" preserveAspectRatio="none"' if stretch else ""
    kind = f' class="{cls}"' if cls else ""
    about = f"<desc>{escape(desc)}</desc>" if desc else ""
    head = f'<svg xmlns="{NAMESPACE}"{kind} viewBox="0 0 {num(width)} {num(height)}"{ratio} role="img">'
    return Markup(f"{head}<title>{escape(title)}</title>{about}{''.join(parts)}</svg>")


def ticks(low: float, high: float, wanted: int) -> list[float]:
    """Round numbers from low to high, about as many as wanted."""
    if not (isfinite(low) and isfinite(high)) or high <= low:
        return [low]
    step = _step((high - low) / max(1, wanted), (1, 2, 5))
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def byte_ticks(high: float, wanted: int) -> list[float]:
    """Round numbers of bytes from zero: powers of two of a unit, so that labels come out short."""
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
    """1, 2 and 5 times powers of ten from low to high; only the powers where there are many, unless fine."""
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    multiples = (1, 2, 5) if fine or len(powers) <= 4 else (1,)
    return [m * 10.0**k for k in powers for m in multiples if low * (1 - 1e-9) <= m * 10.0**k <= high * (1 + 1e-9)]


def show_bytes_short(amount_bytes: float) -> str:
    """An amount of memory for an axis: no needless zeros."""
    shown, unit = show_bytes(amount_bytes).rsplit(" ", 1)
    return f"{float(shown):g} {unit}"


def show_tick(value_s: float, scale_s: float) -> str:
    """A time on an axis, in the unit that suits the axis' length."""
    size, unit = (1.0, "s") if scale_s >= 2 else (1e-3, "ms") if scale_s >= 2e-3 else (1e-6, "µs")
    return "0" if value_s == 0 else f"{value_s / size:.6g} {unit}"


def show_time(value_s: float) -> str:
    """A duration for people; nothing is zero seconds."""
    return show_seconds(value_s).replace(" us", " µs")
