"""Amounts as text at the edges of units, and mistakes and lines of documents, equal to what is kept in texts.txt.

After a change that is meant, write the file again with --update-golden, and read the difference.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hocket.util import units
from hocket.util.documents import parse_json, parse_yaml, with_amounts, write_yaml
from hocket.util.source_lines import line_of
from tests.edges.odd import corrupted
from tests.kept import check, tried

DURATIONS = (
    0.0,
    4e-7,
    9.994e-7,
    9.996e-4,
    9.994e-4,
    0.012345,
    0.9994,
    0.9996,
    1.0,
    59.96,
    999.4,
    999.6,
    7199.0,
    7200.0,
    172799.0,
    172800.0,
    1e8,
    -0.5,
)
BYTES = (0.0, 1.0, 1023.4, 1024.0, 1048575.0, 1048576.0, 1.5 * 2**30, 2.0**40, 2.0**41 + 1, -(2.0**20))
RATES = (0.1, 124.93, 124.95, 1e3, 999.6e3, 1e6, 1.25e9, 1e12, 5.4321e12)
NUMBERS = (0.0, 0.00012345, 1.0, 999.96, 1000.0, 1234.5, 34389.6, 99995.0, 1e14, 1e15, -4321.9)
WORDS = (
    "2GB",
    "11.5 GiB",
    "500MiB",
    "0GB",
    "2Gbit",
    "1e3kB",
    "1e400B",
    "B",
    "2 gb",
    "2GB/s",
    "10Gbit/s",
    "1.5KiB/s",
    "0B/s",
    "/s",
    "3TB",
    "3Ti",
    "5d",
    "12h",
    "90 m",
    "45s",
    "0s",
    "-1d",
    "nanh",
    "5",
    "infd",
)
JSON = """{"a": 1, "b_bytes": "2GB",
 "list": [1, {"rate_bytes_per_s": "1GB/s", "deep": [true, null]}],
 "x.y": {"of": "text"}
}
"""
YAML = """a: 1
b_bytes: 2GB
list:
- 1
- {rate_bytes_per_s: 1GB/s, deep: [true, null]}
other: &anchor {of: text}
again: *anchor
"""
SHOWN: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = (
    (units.show_seconds, DURATIONS),
    (units.show_days, DURATIONS),
    (units.show_bytes, BYTES),
    (units.enough_bytes, tuple(abs(size) for size in BYTES)),
    (units.given_rate, RATES),
    (units.show_rate, RATES),
    (units.show_number, NUMBERS),
    (units.show_gap, (0.0, 0.0004, -0.0004, 0.0005, 0.0006, -0.5, 1.25)),
)  # fmt: skip


def amounts(draw: random.Random) -> list[str]:
    """Every amount, by the function that writes or reads it."""
    lines = [f"{show.__name__} {value!r}: {show(value)}" for show, values in SHOWN for value in values]
    for reads in (units.read_size, units.read_rate, units.read_duration_s):
        lines += [f"{reads.__name__} {word!r}: {tried(reads, word, 'place')}" for word in WORDS]
    for noun in ("step", "batch", "loss", "box"):
        lines.append(f"{[units.show_count(count, noun) for count in (0, 1, 2, 1200)]}")
    for needed, there in (
        (6e6, 1e6),
        (6e6, 1e4),
        (10.0, 500.0),
        (50.0, 500.0),
        (49.0, 500.0),
        (3e9, 2e12),
        (1024.0, 0.0),
        (2.0, 1.0),
    ):
        lines.append(f"shortage {needed:g} {there:g}: {units.show_shortage(needed, there)}")
    for _ in range(8):
        numbers = draw.sample(range(12), draw.randint(0, 9))
        peaks = {number: draw.choice((1e9, 2e9, 2.5e9)) for number in numbers}
        lines.append(f"{units.show_ranges(numbers)} | {units.show_ranges(numbers, ' to ')} | {units.show_peaks(peaks)}")
        if len(peaks) > 3:
            lines.append(f"{units.show_peaks({k: 1e9 + 1e8 * ((k * 5) % 11) for k in numbers}, 3)}")
    return lines


def paths(data: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values of a document."""
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [above, *(path for key, value in inside for path in paths(value, (*above, key)))]


def read(parse: Callable[..., Any], content: str) -> Any:
    """A document with its amounts as numbers."""
    return with_amounts(parse(content, "file"), "file")


def test_texts(update_golden: bool) -> None:
    """Amounts in all units, lines of all values, and what is said of each corrupted document."""
    draw = random.Random(0)
    lines = amounts(draw)
    for text, parse in ((JSON, parse_json), (YAML, parse_yaml)):
        data = parse(text, "file")
        lines += [
            f"line {line_of(text, path)}: {path}" for path in [*paths(data), ("none",), ("list", "none"), ("list", "7")]
        ]
        lines.append(str(with_amounts(data, "file")))
        for what, content in corrupted(text, draw, 2):
            lines.append(f"{what}: {tried(read, parse, content)}")
    lines += write_yaml({"a": [1, 2], "b": {"c": [{"d": 1.5}], "long": list(range(40))}, "none": None}).splitlines()
    check(Path(__file__).with_name("texts.txt"), "\n".join(lines) + "\n", update_golden)
