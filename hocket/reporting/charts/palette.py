"""Colours of a report, one per kind of instruction.

The colours are the same on light and dark pages, and safe for colour-blind readers:

- A fill has a contrast of 3:1 or more to both pages (WCAG 1.4.11).
- Text on a fill has a contrast of 4.5:1 or more to it (WCAG 1.4.3).
- Forward is blue and backward is orange. All common kinds of colour blindness distinguish these.

The tests compute the contrasts.
"""

from dataclasses import dataclass

from hocket.program.instruction import Kind


@dataclass(frozen=True)
class Paint:
    """A fill colour, and the colour of text on it."""

    fill: str
    ink: str


WHITE, BLACK = "#ffffff", "#000000"

# Colours of the page, its text and its lines, by theme.
LIGHT = {
    "page": "#f4f5f7",
    "card": "#ffffff",
    "text": "#1a1d21",
    "muted": "#565d66",
    "line": "#d5d9de",
    "idle": "#f5f6f8",
    "accent": "#0b5fad",
    "mark": "#111111",
    "bad": "#a4262c",
}
DARK = {
    "page": "#0f1114",
    "card": "#15181d",
    "text": "#e7eaee",
    "muted": "#a3abb5",
    "line": "#343a43",
    "idle": "#1b1e24",
    "accent": "#74b3f0",
    "mark": "#ffffff",
    "bad": "#ff9a94",
}

BACKGROUND = "background"
"""Name of a background job's lane, and of its CSS class."""

# Colours by CSS class. Chunks (virtual stages) of one device alternate in time, so the shades of forwards (f0, f1, f2)
# and of backwards (b0, b1, b2) alternate too.
PAINTS = {
    "f0": Paint("#156dbd", WHITE),
    "f1": Paint("#3c93dc", BLACK),
    "f2": Paint("#2880cb", BLACK),
    "b0": Paint("#bd4c00", WHITE),
    "b1": Paint("#d27824", BLACK),
    "b2": Paint("#c9630f", BLACK),
    "again": Paint("#156dbd", WHITE),
    "step": Paint("#00845f", WHITE),
    "send": Paint("#8e5bbf", WHITE),
    "receive": Paint("#a176cd", BLACK),
    "sum": Paint("#c2568f", BLACK),
    "bare": Paint("#d13b40", WHITE),
    "swap": Paint("#8b6b4a", WHITE),
    BACKGROUND: Paint("#7a771b", WHITE),
    "other": Paint("#7a7f87", BLACK),
}
SHADES = 3
# Recomputation and exposed all-reduces have stripes as well. base.html defines the patterns.
HATCHED = {"again": "url(#hatch)", "bare": "url(#bare)"}

# Lines of several strategies in one chart. Colour and dash both differ, so either one distinguishes the lines.
CURVES = (
    ("#1f7ac4", ""),
    ("#cc6410", "7 3"),
    ("#00906a", "2 3"),
    ("#a56fd0", "9 3 2 3"),
    ("#c2568f", "4 2"),
    ("#8a7a2e", "12 4"),
    ("#7a7f87", "1 2"),
    ("#2b8f9b", "9 3 2 3 2 3"),
)

_CLASSES: dict[str, str] = {
    Kind.NORM: "step",
    Kind.STEP: "step",
    Kind.SEND: "send",
    Kind.RECEIVE: "receive",
    Kind.ALL_REDUCE: "sum",
    Kind.REDUCE_SCATTER: "sum",
    Kind.ALL_GATHER: "sum",
    Kind.SWAP_IN: "swap",
    Kind.SWAP_OUT: "swap",
}

# Legend text of each family of classes.
MEANINGS = {
    "f": "forward",
    "again": "forward again (recompute)",
    "b": "backward",
    "step": "step (optimizer, norm of gradients)",
    "send": "send",
    "receive": "receive",
    "sum": "sum or gather over replicas",
    "swap": "to and from the host",
    BACKGROUND: "background job",
    "other": "load, drop",
}


def class_of(kind: str, chunk: int = 0, again: bool = False) -> str:
    """Return the CSS class that colours an instruction of a program in a chart.

    Arguments:
        kind: kind of the instruction, such as "forward" or "send" (`hocket.program.instruction.Kind`).
        chunk: 0 for the first chunk of a device, 1 for the second, and so on.
        again: True for recomputation.
    """
    if kind == Kind.FORWARD:
        return "again" if again else f"f{chunk % SHADES}"
    if kind == Kind.BACKWARD:
        return f"b{chunk % SHADES}"
    return _CLASSES.get(kind, "other")


def family_of(name: str) -> str:
    """Return the family of a CSS class, a key of `MEANINGS`: 'f' for 'f2'."""
    return name[0] if name[1:].isdigit() else name


def stylesheet() -> str:
    """Return the colours as CSS."""
    light, dark = (";".join(f"--{key}:{value}" for key, value in theme.items()) for theme in (LIGHT, DARK))
    rules = [
        f":root{{color-scheme:light dark;{light}}}",
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}",
    ]
    for name, paint in PAINTS.items():
        fill = HATCHED.get(name, paint.fill)
        rules.append(f".{name}{{fill:{fill}}}.l-{name}{{fill:{paint.ink}}}.k-{name}{{background:{paint.fill}}}")
    return "\n".join(rules)


def luminance(colour: str) -> float:
    """Compute the relative luminance of '#rrggbb' (WCAG 2.2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    """Compute the contrast ratio of two colours, 1 to 21 (WCAG 2.2)."""
    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)
