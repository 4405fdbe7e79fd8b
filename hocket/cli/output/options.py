"""Options shared by several commands, and limits of their numbers."""

from typing import Annotated

import typer

# Kinds of output files: their name in errors, and a text at the beginning of each, so that nothing else is replaced.
REPORT_FILE = ("report", "<!doctype html>")
TRACE_FILE = ("trace", "hocket-trace-")
WORKLOAD_FILE = ("workload", "hocket-workload-")
BILLS_FILE = ("file of bills", '"cost_usd"')

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document (seconds, bytes, unrounded).")]


def at_least_one(place: str, count: int) -> None:
    """Refuse a number that counts nothing.

    Raises:
        InputError: at `place`.
    """
    from hocket.errors import InputError

    if count < 1:
        raise InputError(place, str(count), ">= 1")
