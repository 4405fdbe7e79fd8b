"""The command line. Every command has --json (seconds, bytes, unrounded; an error too); without it tables and progress for people.

Exit codes:

    0    done
    1    `check` found problems
    2    your input is wrong
    3    a worker was lost
    4    a loss, a gradient or a weight was nan or infinite while training
    70   our bug
    130  interrupted by Ctrl-C or SIGTERM: also a training, whether it could be saved or not
"""

import errno
import os
import signal
import sys
from io import StringIO, TextIOWrapper
from typing import Any

from hocket.errors import HocketError
from hocket.printable import printable


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; never shows a traceback for an error that Hocket raises on purpose."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        from hocket.cli.app import app

        return _invoke(app, words)
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
    except BrokenPipeError:  # the reader of a pipe has left: `hocket show plan.yaml | head`
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is still to be written
        print(f"error: standard output: {error.strerror}", file=sys.stderr)
        return 2
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "exit_code"):  # a usage error: wrong option, missing argument
            _tell(words, error)
            error.show()
            return int(error.exit_code)
        raise


def _invoke(app: Any, words: list[str]) -> int:
    """Run the command that the words name; unlike `app()` it lets every error pass, KeyboardInterrupt too."""
    from typer import Exit
    from typer.main import get_command

    from hocket.cli.renamed import current

    command = get_command(app)
    try:
        with command.make_context("hocket", current(words)) as context:
            command.invoke(context)
    except Exit as asked:
        return asked.exit_code
    return 0


def _tell(words: list[str], error: Exception) -> None:
    """Print an error on standard output too, in one line, if JSON is expected there."""
    if "--json" in words:
        import json

        from hocket.cli.output.tables import error_json

        print(json.dumps({"error": error_json(error)}))


def run() -> None:
    """Entry point of the console script.

    SIGTERM counts as an interrupt, so that nothing is left behind.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if sys.stdout is None:  # closed by who has started it
        sys.stdout = StringIO()
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # a terminal without our lines and letters gets question marks
    sys.exit(main())
