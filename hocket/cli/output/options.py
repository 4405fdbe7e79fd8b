"""Options shared by several commands, and checks of their values."""

from typing import Annotated

import typer

# Kinds of output files: (name in errors, text near the beginning of each such file). An existing file is replaced only
# if it has this text.
REPORT_FILE = ("report", "<!doctype html>")
TRACE_FILE = ("trace", "hocket-trace-")
WORKLOAD_FILE = ("workload", "hocket-workload-")
BILLS_FILE = ("file of bills", '"cost_usd"')

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document (seconds, bytes, unrounded).")]


def at_least_one(place: str, count: int) -> None:
    """Refuse an option's count below 1.

    Arguments:
        place: option that the error names.

    Raises:
        InputError: the count is 0 or negative.
    """
    from hocket.errors import InputError

    if count < 1:
        raise InputError(place, str(count), ">= 1")
