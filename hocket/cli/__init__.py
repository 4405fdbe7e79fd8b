"""Command line of Hocket.

Every command prints tables and progress for people. With --json it prints one JSON document instead, in unrounded
seconds and bytes; an error is printed as JSON too.

Exit codes:

    0    done
    1    `check` found problems, or `verify` found a difference
    2    your input is wrong, or standard output cannot be written because the disk is full
    3    a worker was lost
    4    a loss, a gradient or a weight was nan or infinite while training
    70   our bug
    130  interrupted by Ctrl-C or SIGTERM; also a training run, with or without a saved checkpoint
"""

import errno
import os
import signal
import sys
from functools import cache
from io import StringIO, TextIOWrapper
from typing import Any

from hocket.errors import HocketError
from hocket.printable import printable


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Errors that Hocket raises on purpose are shown without a traceback.
    """
    words = sys.argv[1:] if arguments is None else arguments
    try:
        from hocket.cli.app import app

        code = _invoke(app, words)
        if sys.stdout is not None:  # it was closed: `hocket show plan.yaml >&-`
            sys.stdout.flush()  # or a full disk would be noticed only when the process ends
        return code
    except HocketError as error:
        _tell(words, error)
        print(printable(f"error: {error}", lines=True), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as stop:
        print(str(stop) or "interrupted", file=sys.stderr)
        return 130
    except EOFError:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the pipe has exited: `hocket show plan.yaml | head`
        _write_nowhere()
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        _write_nowhere()
        print(f"error: standard output: {error.strerror}", file=sys.stderr)
        return 2
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "exit_code"):  # a usage error: wrong option, missing argument
            from hocket.cli.output.option_places import odd_value

            odd = odd_value(error)
            _tell(words, odd or error)
            if odd is not None:
                print(printable(f"error: {odd}", lines=True), file=sys.stderr)
                return odd.exit_code
            error.show()
            return int(error.exit_code)
        raise


def _write_nowhere() -> None:
    """Let later writes to standard output, and what it has buffered, go to /dev/null."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _invoke(app: Any, words: list[str]) -> int:
    """Run the command that a command line names; return its exit code.

    Unlike `app()`, this function lets every exception through, including KeyboardInterrupt.

    Arguments:
        words: command line without the program's name; its first word is the command.
    """
    from typer import Exit

    from hocket.cli.renamed import current

    command = _command(app)
    try:
        with command.make_context("hocket", current(words)) as context:
            command.invoke(context)
    except Exit as asked:
        return asked.exit_code
    return 0


@cache
def _command(app: Any) -> Any:
    """Build all commands once per process; tests and notebooks call `main` many times."""
    from typer.main import get_command

    return get_command(app)


def _tell(words: list[str], error: Exception) -> None:
    """Print an error on standard output too, as one line of JSON, if --json was given."""
    if "--json" in words:
        import json

        from hocket.cli.output.tables import error_json

        try:
            print(json.dumps({"error": error_json(error)}), flush=True)
        except OSError:  # a full disk, or a reader that has left; the error is on standard error as well
            _write_nowhere()


def run() -> None:
    """Entry point of the console script.

    SIGTERM raises KeyboardInterrupt, as Ctrl-C does, so that cleanup code runs.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if sys.stdout is None:  # the parent process closed it
        sys.stdout = StringIO()
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot encode a character shows "?"
    sys.exit(main())
