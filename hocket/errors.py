"""Every error that Hocket raises on purpose.

HocketError
 |- InputError          what you gave is wrong: exit code 2
 |   |- CaptureError    a model that cannot be split, with the module's name
 |   |- RefusedError    a strategy does not support this job on this cluster, with the reason
 |   |- MemoryExceeded  a value does not fit in the memory that a plan allows, with its name
 |   `- ProgramError    a program that is not legal, with the place of each problem: exit code 1 from `hocket check`
 |- WorkerLost          a worker died or went silent while training: exit code 3
 `- InternalError       our bug: please report it

Rule: a message names the place, what was found, what was expected, and the next step.
"""

import difflib
from collections.abc import Iterable


class HocketError(Exception):
    """Base of all errors that Hocket raises on purpose."""

    exit_code = 1


class InputError(HocketError):
    """What the user gave is wrong.

    Arguments:
        place: file and key, or the name of the argument.
        found: what stands there.
        expected: what would be right.
        next_step: what to do about it.
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
        super().__init__(text + (f". {next_step}" if next_step else ""))


class CaptureError(InputError):
    """A model that cannot be captured as a graph of layers."""


class RefusedError(InputError):
    """A strategy that does not support this job on this cluster."""


class MemoryExceeded(InputError):
    """A value that does not fit beside others in the memory that a plan allows.

    Attributes:
        size_bytes: its own; 0 where it is told again by another process.
    """

    def __init__(self, place: str, found: str, expected: str, next_step: str, size_bytes: int = 0) -> None:
        super().__init__(place, found, expected, next_step)
        self.size_bytes = size_bytes


class ProgramError(InputError):
    """A program that is not legal."""

    exit_code = 1


class WorkerLost(HocketError):
    """A worker died, or a peer stopped answering, while a program ran."""

    exit_code = 3


class InternalError(HocketError):
    """Our own bug."""

    exit_code = 70


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint such as "did you mean 'gpipe'?", or an empty string when nothing is near, whatever the case of letters."""
    folded = {one.casefold(): one for one in known}
    longer = sorted(one for one in folded if one.startswith(name.casefold()) and len(name) > 2)
    if longer and name.casefold() not in folded:  # what somebody began to write
        return f"Did you mean {' or '.join(repr(folded[one]) for one in longer)}?"
    match = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.5)
    return f"Did you mean {folded[match[0]]!r}?" if match else ""
