"""Origin: where a job was made, so that another process can make the same one again.

Rules of this file: nothing of a job is sent, and no code is pickled: what goes to other processes is the path of a file and names
in it. Names that stand for something else there, or make another job, are found out by likeness.py.
"""

import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from hocket.errors import InputError

# What a job file must define if nothing else is said: the first of them that it does.
NAMES = ("job", "make_job")


@dataclass(frozen=True)
class Origin:
    """A file, and what to take from it when it is run: the first of these names that is a Job, or makes one when called.

    Attributes:
        names: as they stand in the file, such as "job", "make_job" or "Jobs.small".
    """

    path: Path
    names: tuple[str, ...] = NAMES


@dataclass(frozen=True)
class JobSource:
    """Code that was at work when a job was made: a function that needs no arguments, or the top of a module.

    Attributes:
        name: qualified name of the function; empty for the top of a module.
        module: under which name the module is loaded.
    """

    path: Path
    name: str
    module: str


def makers_at_work() -> tuple[JobSource, ...]:
    """Who called, and who called that, innermost first, up to the top of the module in which this began."""
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
    """Where a job can be had again: under the name that its module has for it, or from the function that made it.

    Raises:
        InputError: nowhere, with what to do.
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
        elif (str(maker.path), maker.name) not in at_work:  # else it would come back to where we are
            own.append(maker.name)
    path = next((path for path, own in names.items() if own), None)
    if path is not None:
        return Origin(path, tuple(names[path]))
    raise InputError(
        "job",
        "a Job that other processes cannot make again",
        "a Job that stands at the top of a file or is returned by a function without arguments, or the path of a job file",
        "Put what makes it into such a function, for example make_job() in job.py, or start this script with torchrun.",
    )


def look_up(names: dict[str, Any], name: str) -> Any:
    """What a qualified name stands for among the names of a module; None when there is no such thing."""
    first, *rest = name.split(".")
    found = names.get(first)
    for part in rest:
        found = getattr(found, part, None)
    return found


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame, the one that called it, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_the_same_call(frame: FrameType) -> bool:
    """Whether calling the function by its name, without arguments, is the call that the frame is of."""
    found = look_up(frame.f_globals, frame.f_code.co_qualname)
    function = inspect.unwrap(found) if callable(found) else None
    own = inspect.isfunction(function) and function.__code__ is frame.f_code
    return own and _has_only_defaults(function, frame.f_locals)


def _has_only_defaults(function: Any, given: dict[str, Any]) -> bool:
    """Whether no argument was given to a call, as far as the values of its parameters tell."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(
        not given.get(name) if one.kind in kinds else one.default is not one.empty and given.get(name) is one.default
        for name, one in inspect.signature(function).parameters.items()
    )
