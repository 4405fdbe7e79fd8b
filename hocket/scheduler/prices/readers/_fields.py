"""Shared field parsers: times, dollars, counts, accelerator names, zones.

The argument `place` is the location of the field, such as a file and a line, for the error message.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from math import inf
from pathlib import Path

from hocket.errors import InputError, nearest
from hocket.scheduler.model.job import LATEST_S
from hocket.util.files import read_text

MAX_TEXT_BYTES = 64 * 2**20
_LEAST_USD = 1e-6
_ACCELERATOR = re.compile(r"[a-z0-9][a-z0-9 ._+-]{0,39}")


def moment(text: str, place: str) -> float:
    """Seconds since 1970 of an ISO 8601 time with a time zone.

    Example: 2020-02-20T23:21:08.000Z.

    Raises:
        InputError: not such a time, or a time before 1970.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None or not 0 <= found.timestamp() <= LATEST_S:
        expected = "a moment such as 2020-02-20T23:21:08Z"
        raise InputError(place, repr(text[:40]), expected)
    return found.timestamp()


def day(text: str, place: str) -> float:
    """Parse a date such as 2/24/2020 (month/day/year).

    Returns:
        Start of the day in UTC, in seconds since 1970.

    Raises:
        InputError: not such a date, or a date before 1970.
    """
    try:
        found = datetime.strptime(text, "%m/%d/%Y").replace(tzinfo=UTC).timestamp()
    except ValueError:
        found = -1.0
    if not 0 <= found <= LATEST_S:
        raise InputError(place, repr(text[:40]), "a day such as 2/24/2020")
    return found


def dollars(text: str, place: str) -> float:
    """Parse a price in dollars, with or without a dollar sign.

    Raises:
        InputError: not such a price, or one below a millionth of a dollar.
    """
    bare = text.strip().removeprefix("$")
    value = float(bare) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,20})?|\.[0-9]{1,20}", bare) else 0.0
    if value < _LEAST_USD:
        raise InputError(place, repr(text[:40]), "dollars per hour, > 0")
    return value


def count(text: str, place: str) -> float:
    """Parse a number of accelerators, > 0; some clouds sell fractions.

    Raises:
        InputError: not such a number.
    """
    value = float(text) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,9})?", text) else 0.0
    if not 0 < value < inf:
        raise InputError(place, repr(text[:40]), "a number of accelerators, > 0")
    return value


def accelerator(text: str, place: str) -> str:
    """Normalized accelerator name: v100 for 'nvidia-tesla-v100' and 'V100'.

    Raises:
        InputError: not a name.
    """
    name = text.strip().lower().removeprefix("nvidia-").removeprefix("tesla-")
    if not _ACCELERATOR.fullmatch(name):
        raise InputError(place, repr(text[:40]), "an accelerator's name, such as V100")
    return name


def region_of(zone: str, cloud: str, place: str) -> str:
    """Region of a zone.

    Examples: us-east-1 for us-east-1b (AWS), us-west1 for us-west1-b (Google).

    Arguments:
        zone: name of the zone.
        cloud: aws or gcp.
        place: where the zone was read, for error messages, such as a file and a field.

    Raises:
        InputError: `zone` is not a zone of this cloud, or the cloud is unknown.
    """
    form = {"aws": r"([a-z]{2}(?:-[a-z]+)+-\d+)[a-z]", "gcp": r"([a-z]+-[a-z]+\d+)-[a-z]"}.get(cloud)
    if form is None:
        raise InputError("cloud", repr(cloud), "aws or gcp")
    match = re.fullmatch(form, zone)
    if match is None:
        raise InputError(place, repr(zone[:40]), f"a zone of {cloud}")
    return match[1]


def attached(accelerators: float, name: str) -> str:
    """Name of an instance type for clouds without such names, such as 4xv100.

    On these clouds, accelerators attach to any machine.
    """
    return f"{accelerators:g}x{name}"


def table(path: str | Path, needed: Sequence[str]) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Header of a CSV file, and its rows with line numbers.

    Arguments:
        needed: names of columns that the header must have.

    Raises:
        InputError: an unreadable file, a missing or duplicate column, or a row of another length.
    """
    rows = _rows(path)
    header = [name.strip() for name in next(rows, (1, []))[1]]
    for name in needed:
        if name not in header:
            found = f"columns {', '.join(header)[:80]}" if header else "an empty file"
            raise InputError(f"{path}, line 1", found, f"a column {name!r}", nearest(name, header))
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise InputError(f"{path}, line 1", f"two columns {twice!r}", "each column once")

    def checked() -> Iterator[tuple[int, list[str]]]:
        for line, row in rows:
            if len(row) != len(header):
                raise InputError(f"{path}, line {line}", f"{len(row)} fields", f"{len(header)}, as in the header")
            yield line, row

    return header, checked()


def _rows(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(read_text(path, MAX_TEXT_BYTES).splitlines(), strict=True)
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(f"{path}, line {reader.line_num}", str(error), "a row of a CSV file") from None
        if row:
            yield reader.line_num, row
