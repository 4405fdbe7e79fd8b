"""Failures: what an exception in one candidate is for a search: a refusal with its reason, and a bug of ours where it is no mistake of
anybody's.

Rules of this file: one candidate that fails never ends the search of all others. What was given may not suit a candidate (InputError): it
is refused like what does not fit. Whatever else is raised, a program of ours that is not legal among it, is a bug: refused as well, and
told to whoever plans, since what was left out may have been the best.
"""

import traceback
from pathlib import Path

from hocket.errors import InputError, ProgramError, RefusedError
from hocket.planning.search.result import Refused

_PACKAGE = Path(__file__).parents[2]
_MOST = 400  # characters of a bug's words: a program that is not legal is drawn in its error


def failed(strategy: str, config: str, error: Exception, swaps: bool = False) -> Refused:
    """The refusal of a candidate whose choice, program, proof or simulation raised an error.

    Raises:
        MemoryError: as it was raised: of this machine, and no matter of one candidate.
    """
    if isinstance(error, MemoryError):
        raise error
    if isinstance(error, RefusedError):
        return Refused(strategy, config, f"{error.place}: {error.found}" if error.found else str(error), swaps=swaps)
    if isinstance(error, InputError) and not isinstance(error, ProgramError):
        return Refused(strategy, config, str(error), swaps=swaps)
    words = " ".join(str(error).split())
    words = words if len(words) <= _MOST else f"{words[:_MOST]}..."
    return Refused(strategy, config, f"{type(error).__name__}{_where(error)}: {words}", swaps=swaps, bug=True)


def _where(error: Exception) -> str:
    """' at planning/predict/predict.py:12', the innermost of our own lines; nothing where none is."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _PACKAGE in Path(frame.filename).parents:
            return f" at {Path(frame.filename).relative_to(_PACKAGE).as_posix()}:{frame.lineno}"
    return ""
