"""The command line. Every command has --json (seconds, bytes, unrounded; an error too); without it tables and progress for people.

Exit codes:

    0    done
    1    `check` found problems
    2    your input is wrong
    3    a worker was lost
    70   our bug
    130  interrupted: also a training that Ctrl-C or SIGTERM stopped, whether it could be saved or not
"""

import sys

from hocket.errors import HocketError


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; never shows a traceback for an error that Hocket raises on purpose."""
    from hocket.cli.app import app

    try:
        code = app(args=arguments, prog_name="hocket", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except HocketError as error:
        _tell(arguments, error)
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, EOFError):
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has left: `hocket show plan.yaml | head`
        sys.stderr.close()
        return 0
    except Exception as error:
        from typer import Abort, Exit

        if isinstance(error, Exit):
            return error.exit_code
        if isinstance(error, Abort):
            print("interrupted", file=sys.stderr)
            return 130
        if hasattr(error, "show") and hasattr(error, "exit_code"):  # a usage error: wrong option, missing argument
            _tell(arguments, error)
            error.show()
            return int(error.exit_code)
        raise


def _tell(arguments: list[str] | None, error: Exception) -> None:
    """On standard output too, in one line, where JSON is expected there."""
    if "--json" in (sys.argv[1:] if arguments is None else arguments):
        import json

        from hocket.cli.output import error_json

        print(json.dumps({"error": error_json(error)}))


def run() -> None:
    """Entry point of the console script."""
    sys.exit(main())
