"""Rows of text files: bounded, split into fields, with checked numbers.

Errors name the file, the line and the field.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path

from hocket.errors import InputError, nearest
from hocket.scheduler.simulation.workload import MOST_JOBS, inside
from hocket.util.files import read_bytes, read_text

MOST_BYTES = 128 * 2**20
_LONGEST_LINE = 4096  # characters
_MOST_LINES = 2 * MOST_JOBS  # including empty lines, which cost time as well
_MOST_SHOWN = 40
_NUMBER = re.compile(
    r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII
)  # float() also accepts 1_000 and digits of other scripts


@dataclass(frozen=True)
class FileRow:
    """Line of a file, with its number and its fields by name."""

    path: str
    line: int
    cells: dict[str, str]

    def place(self, field: str) -> str:
        """Location of a field."""
        return f"{self.path}, line {self.line}, {field}"

    def inside(self) -> AbstractContextManager[None]:
        """Context manager that adds the file and the line to errors."""
        return inside(f"{self.path}, line {self.line}")

    def number(self, field: str, least: float = 0.0, above: bool = False) -> float:
        """Value of a field as a finite number >= `least`, or > `least` if `above`.

        Raises:
            InputError: the field has another text.
        """
        text = self.cells[field].strip()
        found = float(text) if _NUMBER.fullmatch(text) else nan
        if not isfinite(found) or found < least or (above and found == least):
            raise InputError(self.place(field), _shown(text), f"a number {'>' if above else '>='} {least:g}")
        return found

    def whole(self, field: str, least: int = 0) -> int:
        """Value of a field as a whole number >= `least`.

        Raises:
            InputError: the field has another text.
        """
        text = self.cells[field].strip()
        if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) >= least):
            raise InputError(self.place(field), _shown(text), f"a whole number >= {least}")
        return int(text)

    def text(self, field: str) -> str:
        """Text of a field, without spaces around it.

        Raises:
            InputError: the field is empty.
        """
        found = self.cells[field].strip()
        if not found:
            raise InputError(self.place(field), "nothing", "a text")
        return found


def _shown(text: str) -> str:
    return repr(text[:_MOST_SHOWN]) if text else "nothing"


def tabbed(path: str | Path, names: Sequence[str]) -> Iterator[FileRow]:
    """Rows of a tab-separated file without a header; empty lines are skipped.

    Arguments:
        names: names of the fields, in file order.

    Raises:
        InputError: a wrong number of fields, too many lines, or a line too long.
    """
    for line, text in _lines(read_text(path, MOST_BYTES), path):
        cells = text.split("\t")
        if len(cells) != len(names):
            expected = f"{len(names)} tab-separated fields: {', '.join(names)}"
            raise InputError(f"{path}, line {line}", f"{len(cells)}", expected)
        yield FileRow(str(path), line, dict(zip(names, cells, strict=True)))


def table(content: str, path: str | Path, required: Sequence[str]) -> Iterator[FileRow]:
    """Rows of an unquoted CSV with a header; extra columns are kept.

    Arguments:
        content: content of the file at `path`.
        required: names of columns that the header must have.

    Raises:
        InputError: a missing or duplicate column, an empty file, a wrong number of fields, too many lines, or a line
            too long.
    """
    names: list[str] = []
    for line, text in _lines(content, path):
        cells = text.split(",")
        if not names:
            names = [cell.strip() for cell in cells]
            for name in required:
                if name not in names:
                    known = f"columns {', '.join(names)}"[:80]
                    raise InputError(f"{path}, line {line}", known, f"a column {name}", nearest(name, names))
            twice = next((name for k, name in enumerate(names) if name in names[:k]), None)
            if twice is not None:
                raise InputError(f"{path}, line {line}", f"two columns {twice[:_MOST_SHOWN]}", "each column once")
            continue
        if len(cells) != len(names):
            raise InputError(f"{path}, line {line}", f"{len(cells)} fields", f"{len(names)}, as in the header")
        yield FileRow(str(path), line, dict(zip(names, cells, strict=True)))
    if not names:
        raise InputError(str(path), "an empty file", f"a header with {', '.join(required)}")


def json_bytes(path: str | Path, most_objects: int) -> bytes:
    """Content of a JSON file with a bounded number of objects.

    The number of objects determines the time and the memory of parsing.

    Raises:
        InputError: an unreadable file, too many bytes, or too many objects.
    """
    content = read_bytes(path, MOST_BYTES)
    few_objects(content, str(path), most_objects)
    return content


def few_objects(content: bytes | str, place: str, most: int) -> None:
    """Reject JSON with too many objects before parsing.

    Arguments:
        most: maximum number of objects.

    Raises:
        InputError: at `place`.
    """
    count = content.count("{") if isinstance(content, str) else content.count(b"{")
    if count > most:
        raise InputError(place, f"{count} objects", f"at most {most}")


def _lines(content: str, path: str | Path) -> Iterator[tuple[int, str]]:
    lines = content.count("\n")
    if lines > _MOST_LINES:
        raise InputError(str(path), f"{lines} lines", f"at most {_MOST_LINES}")
    count = 0
    for line, text in enumerate(content.split("\n"), 1):
        text = text.removesuffix("\r")
        if len(text) > _LONGEST_LINE:
            raise InputError(f"{path}, line {line}", f"{len(text)} characters", f"at most {_LONGEST_LINE}")
        if not text.strip():
            continue
        count += 1
        if count > MOST_JOBS:
            raise InputError(f"{path}, line {line}", f"more than {MOST_JOBS} rows", f"at most {MOST_JOBS}")
        yield line, text
