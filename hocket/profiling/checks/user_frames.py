"""Frames: which lines of a traceback belong to whoever wrote the job.

Rules of this file: no torch.
"""

import sysconfig
import traceback
from pathlib import Path

# Code that the author of the job did not write.
_FOREIGN = (str(Path(__file__).parents[2]), sysconfig.get_paths()["stdlib"], "<frozen")
_INSTALLED = {"site-packages", "dist-packages"}
_MAX_FRAMES = 8


def is_own(path: str) -> bool:
    """True if a source file is the job's own.

    Files of Hocket, of Python and of installed packages are not.
    """
    return not path.startswith(_FOREIGN) and not _INSTALLED & set(Path(path).parts)


def raised_at(error: BaseException) -> str:
    """The job's own frames of an error, as lines of a traceback; all of its last frames where none is the job's."""
    frames = traceback.extract_tb(error.__traceback__)
    shown = [frame for frame in frames if is_own(frame.filename)] or list(frames)
    return "".join(traceback.format_list(shown[-_MAX_FRAMES:])).rstrip()
