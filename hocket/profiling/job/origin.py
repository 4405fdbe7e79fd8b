"""Origin of a job: the location from which other processes rebuild the job.

Rules of this file:
- No job is sent and no code is pickled. Other processes receive the path of a file and names in the file.
- likeness.py detects names that yield another job in the other process.
"""

import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from hocket.errors import InputError

# Default names to look up in a job file; the first defined name counts.
NAMES = ("job", "make_job")


@dataclass(frozen=True)
class Origin:
    """A file and the names to look up in it.

    The first name that is a Job, or a function that returns a Job, yields the job.

    Attributes:
        names: qualified names in the file, such as "job", "make_job" or "Jobs.small".
    """

    path: Path
    names: tuple[str, ...] = NAMES


@dataclass(frozen=True)
class JobSource:
    """Function or module that was executing when a job was constructed.

    Other processes call the function, or load the module, to construct the job again. A function has only arguments
    with default values. `makers_at_work` selects these functions and modules from the call stack.

    Attributes:
        name: qualified name of the function; empty for the top level of a module.
        module: name of the loaded module.
    """

    path: Path
    name: str
    module: str


def makers_at_work() -> tuple[JobSource, ...]:
    """Return the functions on the call stack that can be called again, innermost first.

    A function counts if its arguments have their default values, and it can be found by its name. The first top level
    of a module on the call stack ends the search, and is the last entry.
    """
    found = []
    for frame in _frames(sys._getframe(1)):
        code = frame.f_code
        if code.co_name == "<module>" or _is_the_same_call(frame):
            name = "" if code.co_name == "<module>" else code.co_qualname
            found.append(JobSource(Path(code.co_filename), name, str(frame.f_globals.get("__name__", ""))))
        if code.co_name == "<module>":
            break
    return tuple(found)


def origin_of(job: object, makers: tuple[JobSource, ...]) -> Origin:
    """Return the origin of a job.

    The origin is either a module-level name of the job, or the function that constructed the job.

    Arguments:
        makers: result of `makers_at_work` at the job's construction.

    Raises:
        InputError: the job has no origin; the error gives the next step.
    """
    at_work = {(frame.f_code.co_filename, frame.f_code.co_qualname) for frame in _frames(sys._getframe(1))}
    names: dict[Path, list[str]] = {}
    for maker in makers:
        if not maker.path.is_file():  # typed in, or a cell of a notebook
            continue
        own = names.setdefault(maker.path, [])
        if not maker.name:
            module = vars(sys.modules[maker.module]) if maker.module in sys.modules else {}
            own[:0] = [name for name, value in module.items() if value is job]
        elif (str(maker.path), maker.name) not in at_work:  # otherwise the call would recurse
            own.append(maker.name)
    path = next((path for path, own in names.items() if own), None)
    if path is not None:
        return Origin(path, tuple(names[path]))
    raise InputError(
        "job",
        "a Job that other processes cannot create",
        "a Job at the top level of a file, a Job returned by a function without arguments, or the path of a job file",
        "Create it in such a function, for example make_job() in job.py, or start this script with torchrun.",
    )


def look_up(names: dict[str, Any], name: str) -> Any:
    """Look up a qualified name in a module's namespace; None if undefined."""
    first, *rest = name.split(".")
    found = names.get(first)
    for part in rest:
        found = getattr(found, part, None)
    return found


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Iterate over a frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_the_same_call(frame: FrameType) -> bool:
    """True if calling a frame's function by its name, without arguments, repeats it."""
    found = look_up(frame.f_globals, frame.f_code.co_qualname)
    function = inspect.unwrap(found) if callable(found) else None
    own = inspect.isfunction(function) and function.__code__ is frame.f_code
    return own and _has_only_defaults(function, frame.f_locals)


def _has_only_defaults(function: Any, given: dict[str, Any]) -> bool:
    """True if all parameters of a call have their default values."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(
        not given.get(name) if one.kind in kinds else one.default is not one.empty and given.get(name) is one.default
        for name, one in inspect.signature(function).parameters.items()
    )
