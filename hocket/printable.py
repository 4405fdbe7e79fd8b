"""Printable text: safe to show on a terminal or a page.

Names of jobs, layers, tensors and clusters come from files, which others may have written. Control characters, escape
sequences and marks of writing direction are shown as escapes such as \\x1b, so they cannot move the cursor, change
colours or reorder letters.
"""

import re
import sys
import unicodedata
from typing import TextIO

__all__ = ["printable", "say"]

_UNSURE = re.compile(r"[^ -~]")
_UNSEEN = {
    "Cc",
    "Cf",
    "Cs",
    "Zl",
    "Zp",
}  # control and format characters, surrogates, line and paragraph separators


def printable(text: str, lines: bool = False) -> str:
    """Escape all invisible characters of a text except spaces.

    Arguments:
        lines: True to keep line ends and tabs as they are.
    """

    def shown(found: re.Match[str]) -> str:
        character = found[0]
        if (lines and character in "\n\t") or unicodedata.category(character) not in _UNSEEN:
            return character
        return character.encode("unicode_escape").decode("ascii")

    return _UNSURE.sub(shown, text)


def say(text: str, file: TextIO | None = None) -> None:
    """Print a line with invisible characters escaped, by default to standard output."""
    print(printable(text), file=file or sys.stdout)
