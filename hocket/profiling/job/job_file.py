"""Job file: a Python file that defines a job."""

import re
import runpy
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from hocket.errors import InputError, nearest
from hocket.profiling.job.job import Job
from hocket.profiling.job.origin import NAMES, look_up

# Extensions of Hocket's own data files. Running such a file as Python would fail with a confusing error.
_NO_CODE = (".json", ".yaml", ".yml", ".gz")


def check_job_file(path: str | Path) -> Path:
    """Return the path if it can be a job file.

    Raises:
        InputError: the file does not exist, or is a data file.
    """
    path = Path(path)
    expected = "a Python file that defines `job` or `make_job()`"
    if not path.is_file():
        raise InputError(str(path), "a folder" if path.is_dir() else "no such file", expected)
    if path.suffix in _NO_CODE:
        raise InputError(str(path), f"a file of data ({path.suffix})", expected)
    return path


def load_job(path: str | Path, names: Sequence[str] = NAMES) -> Job:
    """Run a job file and return its `job` or the result of its `make_job()`.

    The file can import modules from its own directory, as with `python FILE`; the directory stays importable. A file
    in a package can also import the modules of the package.

    Arguments:
        path: the job file.
        names: names to look up. The first name that the file defines is the job, or a function that returns the job.

    Raises:
        InputError: the file does not exist, fails, or defines none of the names.
    """
    path = check_job_file(path)
    _running.append(path)
    try:
        defined = runpy.run_path(str(path), run_name=_name_to_run(path))
        name, made = next(
            ((name, thing) for name in names if (thing := look_up(defined, name)) is not None), ("", None)
        )
        where = f"`{name}`,"
        if not isinstance(made, Job) and callable(made):
            made, where = made(), f"`{name}()`, which returned"
    except InputError:
        raise
    except SystemExit as error:
        step = (
            'Put code that exits or reads the command line under `if __name__ == "__main__":`, which is not run here.'
        )
        raise InputError(str(path), f"sys.exit({error.code!r})", "a job file that runs to its end", step) from error
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        step = _known_keyword(error) or f"Try: python {path}"
        raise InputError(str(path), text, "a job file that runs", step) from error
    finally:
        _running.pop()
    if not isinstance(made, Job):
        told = " and no ".join(f"`{name}`" for name in names)
        found = f"no {told}" if made is None else f"{where} a value of type {type(made).__name__}"
        step = 'Code under `if __name__ == "__main__":` is not run.' if made is None else ""
        raise InputError(str(path), found, "`job` (a hocket.Job) or `make_job()` (a function that returns one)", step)
    object.__setattr__(made, "path", path.absolute())
    return made


def _known_keyword(error: Exception) -> str:
    """Suggest the nearest keyword of `Job` for an unknown keyword."""
    match = re.search(r"Job\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    known = [one.name for one in fields(Job) if one.init]
    return "" if match is None else nearest(match.group(1), known) or f"A Job has {', '.join(known)}."


def _name_to_run(path: Path) -> str:
    """Return the module name for a job file, and extend the import path."""
    folder, package = path.absolute().parent, ["hocket_job"]
    while (folder / "__init__.py").is_file():
        package.insert(0, folder.name)
        folder = folder.parent
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return ".".join(package)


# Stack of the job files in execution, innermost last.
_running: list[Path] = []


def refuse_in_job_file(what: str) -> None:
    """Refuse a long operation at the top level of a job file.

    Every process runs the job file to obtain the job, and would start the operation again.

    Arguments:
        what: name of the operation, for the error.

    Raises:
        InputError: a job file is in execution.
    """
    if _running:
        expected = 'a call under `if __name__ == "__main__":`, which is not run when the file is loaded for its job'
        raise InputError(str(_running[-1]), f"a call of {what}", expected)
