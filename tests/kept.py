"""Texts with all figures that are kept in files, such as outputs of commands, and the comparison of two such texts.

Numbers may differ in their last digits between machines; everything else is equal letter by letter. Of a report page,
the text that a reader sees is kept, and for each kind of mark in its drawings their number and the sum of all their
coordinates: a mark that is elsewhere changes the sum.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from html.parser import HTMLParser
from math import isclose
from pathlib import Path
from typing import Any

from hocket.errors import InputError

NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
TOOK = re.compile(r"^(?:wall|search)_s: .*|(?<= in )[\d.]+ (?:ms|s|µs)(?=$| )", re.M)
"""Seconds that this machine took."""
VERSION = re.compile(r"hocket \d+\.\d+\.\d+")
_PLACES = ("d", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height", "points", "transform")
_DRAWN = ("path", "rect", "line", "circle", "polyline", "polygon", "text", "g", "use")


class _Page(HTMLParser):
    """Visible text of a page, and marks of its drawings; of tooltips, their number and the sum of all numbers in them."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.marks: Counter[str] = Counter()
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.words: defaultdict[str, list[str]] = defaultdict(list)
        self.tooltips, self.told = 0, 0.0
        self._open: list[str] = []
        self._mark = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.append(tag)
        if tag not in _DRAWN:
            return
        given = dict(attrs)
        self._mark = f"{tag}.{given.get('class') or ''}"
        places = " ".join(given.get(name) or "" for name in _PLACES)
        self.marks[self._mark] += 1
        self.sums[self._mark] += sum(map(float, re.findall(r"-?\d+(?:\.\d+)?", places)))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        text = VERSION.sub("hocket VERSION", " ".join(data.split()))
        if not text or {"script", "style"} & set(self._open):
            return
        if self._open[-1:] == ["title"] and "svg" in self._open:
            self.tooltips += 1
            self.told += sum(map(float, re.findall(r"-?\d+(?:\.\d+)?", text)))
        elif "svg" in self._open:
            self.words[self._mark].append(text)
        else:
            self.lines.append(TOOK.sub("SECONDS", text))


def page(html: str) -> str:
    """What is kept of a report page."""
    found = _Page()
    found.feed(html)
    marks = [f"{found.tooltips} tooltips, {found.told:.6g}"] if found.tooltips else []
    marks += [
        f"{kind} {count} {found.sums[kind]:.1f} {' '.join(found.words[kind])}".rstrip()
        for kind, count in sorted(found.marks.items())
    ]
    return (
        "\n".join([*found.lines, "", "marks, their number, the sum of their coordinates, their text:", *marks]) + "\n"
    )


def document(text: str) -> str:
    """A JSON document with one line for each key, or for each element of a list."""
    found = json.loads(text)
    rows = found.items() if isinstance(found, dict) else enumerate(found)
    return "\n".join(f"{key}: {json.dumps(value)}" for key, value in rows) + "\n"


def tried(call: Callable[..., Any], *args: Any, **named: Any) -> str:
    """What a call gives, as text, or what its error says."""
    try:
        found = call(*args, **named)
    except InputError as error:
        return f"refused: {error}"
    return f"{found:.9g}" if isinstance(found, float) else str(found)


def differences(kept: str, found: str, tolerance: float = 1e-6) -> list[str]:
    """Lines that differ in more than the last digits of numbers, the first ten."""
    said = []
    before, after = kept.splitlines(), found.splitlines()
    for number, (old, new) in enumerate(zip(before, after, strict=False), 1):
        if old != new and not _close(old, new, tolerance):
            said.append(f"line {number}:\n  - {old}\n  + {new}")
    if len(before) != len(after):
        said.append(f"{len(before)} lines before, {len(after)} now")
    return said[:10]


def _close(old: str, new: str, tolerance: float) -> bool:
    if NUMBER.sub("", old) != NUMBER.sub("", new):
        return False
    numbers = zip(*([float(one.replace(",", "")) for one in NUMBER.findall(text)] for text in (old, new)), strict=True)
    return all(isclose(a, b, rel_tol=tolerance, abs_tol=1e-9) for a, b in numbers)


def check(path: Path, found: str, update: bool) -> None:
    """Compare a text with the kept one, or keep it.

    Arguments:
        path: file of the kept text.
        update: keep the text first (`--update-golden`).
    """
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found)
    differing = differences(path.read_text(), found)
    said = f"{path.name} is another than kept (--update-golden keeps the new one):"
    assert not differing, "\n".join([said, *differing])
