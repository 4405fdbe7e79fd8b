"""Options shared by several commands, and checks of their values."""

from typing import Annotated

import typer

# Kinds of output files: name in errors, and a text near the beginning of each file. Only a file with this text is
# replaced.
REPORT_FILE = ("report", "<!doctype html>")
TRACE_FILE = ("trace", "hocket-trace-")
WORKLOAD_FILE = ("workload", "hocket-workload-")
BILLS_FILE = ("file of bills", '"cost_usd"')

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document (seconds, bytes, unrounded).")]


def at_least_one(place: str, count: int) -> None:
    """Refuse a count below 1.

    Raises:
        InputError: at `place`.
    """
    from hocket.errors import InputError

    if count < 1:
        raise InputError(place, str(count), ">= 1")
