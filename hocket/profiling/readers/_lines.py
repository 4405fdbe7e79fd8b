"""Lines of a text file with their places, for readers of line-oriented formats."""

import math
from collections.abc import Iterator
from pathlib import Path

from hocket.errors import InputError
from hocket.util.files import read_bytes

MAX_TEXT_BYTES = 32 * 2**20


def lines(path: str | Path) -> Iterator[tuple[str, str]]:
    """Yield place and text of every line that is not blank.

    A place is a text such as 'vgg16.graph.txt line 12'.

    Raises:
        InputError: the file is missing, too large, or not text.
    """
    try:
        text = read_bytes(path, MAX_TEXT_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(str(path), f"an invalid UTF-8 byte at position {error.start}", "a text file") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"{path} line {number}", line.rstrip()


def number(text: str, place: str, what: str) -> float:
    """Parse a finite number >= 0.

    Arguments:
        place, what: place and meaning of the number, for the error.

    Raises:
        InputError: the text is not such a number.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InputError(f"{place}: {what}", repr(text[:40]), "a number >= 0")
    return value
