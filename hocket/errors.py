"""Every error that Hocket raises on purpose.

HocketError
 |- InputError          what you gave is wrong: exit code 2
 |   |- CaptureError    a model that cannot be split, with the module's name
 |   |- RefusedError    a strategy does not support this job on this cluster, with the reason
 |   |- MemoryExceeded  a value does not fit in the memory that a plan allows, with its name
 |   |- NotFinite       a loss, a gradient or a weight that is nan or infinite, with its place: exit code 4
 |   `- ProgramError    a program that is not legal, with the place of each problem: exit code 1 from `hocket check`
 |- WorkerLost          a worker died or went silent while training: exit code 3
 |- LoaderLost          a process that reads samples for a worker died: exit code 3
 |- CallbackFailed      a callback of the user raised an exception while training: exit code 3
 `- InternalError       our bug: please report it

Rule: a message names the place, what was found, what was expected, and the next step.
"""

import difflib
import re
from collections.abc import Iterable

from hocket.printable import printable


class HocketError(Exception):
    """Base of all errors that Hocket raises on purpose."""

    exit_code = 1


class InputError(HocketError):
    """Invalid input of the user.

    Arguments:
        place: file and key, or the name of the argument.
        found: what stands there.
        expected: what would be right.
        next_step: what to do about it.

    The message shows control characters of these texts as escapes, because the texts may come from files.
    """

    exit_code = 2

    def __init__(self, place: str, found: str = "", expected: str = "", next_step: str = "") -> None:
        self.place, self.found, self.expected, self.next_step = place, found, expected, next_step
        parts = [place]
        if found:
            parts.append(f"found {found}")
        if expected:
            parts.append(f"expected {expected}")
        text = ": ".join([parts[0], "; ".join(parts[1:])]) if len(parts) > 1 else parts[0]
        super().__init__(printable(text + (f". {next_step}" if next_step else ""), lines=True))


class CaptureError(InputError):
    """A model that cannot be captured as a graph of layers."""


class RefusedError(InputError):
    """A strategy that does not support this job on this cluster."""


class MemoryExceeded(InputError):
    """A value does not fit into the memory that a plan allows, beside other values.

    Attributes:
        size_bytes: bytes of the value that does not fit; 0 if unknown, as in an error that another process reports.
    """

    def __init__(self, place: str, found: str, expected: str, next_step: str, size_bytes: int = 0) -> None:
        super().__init__(place, found, expected, next_step)
        self.size_bytes = size_bytes


class NotFinite(InputError):
    """A loss, a gradient or a weight that is nan or infinite."""

    exit_code = 4


class ProgramError(InputError):
    """A program that is not legal."""

    exit_code = 1


class WorkerLost(HocketError):
    """A worker died, or a peer stopped answering, while a program ran."""

    exit_code = 3


class LoaderLost(HocketError):
    """A process that reads samples for a worker died while a program ran."""

    exit_code = 3


class CallbackFailed(HocketError):
    """A callback of the user raised an exception while a job trained."""

    exit_code = 3


class InternalError(HocketError):
    """A bug in Hocket itself."""

    exit_code = 70


PRODUCTS = 0.8  # `cutoff` of `nearest` for product names, where one character makes another product: b200 and h200


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Hint such as "Did you mean 'gpipe'?"; empty if no known name is similar.

    Case is ignored. Known names that begin with `name` are preferred. Otherwise, names with different digits are never
    similar: an h200 is not a misspelt h100. If `name` has several words, the digits may differ, such as a batch size.

    Arguments:
        known: valid names.
        cutoff: least similarity, 0 to 1, as in `difflib.get_close_matches`; PRODUCTS for names of products.
    """
    folded = {one.casefold(): one for one in known}
    longer = sorted(one for one in folded if one.startswith(name.casefold()) and len(name) > 2)
    longer = [one for one in longer if not (name[-1].isdigit() and one[len(name) :][:1].isdigit())]
    if longer and name.casefold() not in folded:  # what somebody began to write
        return f"Did you mean {' or '.join(repr(folded[one]) for one in longer)}?"
    numbers = [] if " " in name.strip() else re.findall(r"\d+", name)
    same = [one for one in folded if not numbers or re.findall(r"\d+", one) == numbers]
    match = difflib.get_close_matches(name.casefold(), same, n=1, cutoff=cutoff)
    return f"Did you mean {folded[match[0]]!r}?" if match else ""
