"""User frames: the traceback lines in the user's own files.

Rules of this file: no torch.
"""

import sysconfig
import traceback
from pathlib import Path

# Path prefixes of code outside the job.
_FOREIGN = (str(Path(__file__).parents[2]), sysconfig.get_paths()["stdlib"], "<frozen")
_INSTALLED = {"site-packages", "dist-packages"}
_MAX_FRAMES = 8


def is_own(path: str) -> bool:
    """True if a source file is the job's own.

    Files of Hocket, of Python and of installed packages are not.
    """
    return not path.startswith(_FOREIGN) and not _INSTALLED & set(Path(path).parts)


def raised_at(error: BaseException) -> str:
    """Format the job's own frames of an error as traceback lines.

    Without a frame of the job, the result contains the last frames of the error.
    """
    frames = traceback.extract_tb(error.__traceback__)
    shown = [frame for frame in frames if is_own(frame.filename)] or list(frames)
    return "".join(traceback.format_list(shown[-_MAX_FRAMES:])).rstrip()
