"""Turn a candidate's exception into a refusal or a bug report.

Rules of this file: one candidate that fails never ends the search.
- The input does not suit the candidate (InputError): it is refused, like a candidate that does not fit.
- Any other error, including an invalid program of Hocket's own, is a bug. The candidate is refused, and the user is
  told, since it may have been the best.
"""

import traceback
from pathlib import Path

from hocket.errors import InputError, ProgramError, RefusedError
from hocket.planning.search.result import Refused

_PACKAGE = Path(__file__).parents[2]
_MOST = 400  # characters of a bug's text, since the error of an invalid program contains its diagram


def failed(strategy: str, config: str, error: Exception, swaps: bool = False) -> Refused:
    """Refuse a candidate that raised an error.

    The error may come from the candidate's stages, program, memory proof or simulation.

    Raises:
        MemoryError: re-raised, since the whole machine is short of memory, not one candidate.
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
    """Place of the innermost Hocket frame, as ' at planning/predict/predict.py:12'.

    Empty if no frame is in the package.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _PACKAGE in Path(frame.filename).parents:
            return f" at {Path(frame.filename).relative_to(_PACKAGE).as_posix()}:{frame.lineno}"
    return ""
