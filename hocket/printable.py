"""Printable: text for a terminal or a page, without what would move the cursor, change colours or reorder letters.

Names of jobs, layers, tensors and clusters come from files, which others may have written. Whatever shows them shows each control
character, escape sequences and marks of writing direction among them, as an escape such as \\x1b.
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
}  # controls, marks of direction and of joining, halves of letters, ends of lines


def printable(text: str, lines: bool = False) -> str:
    """Text whose every character is seen, or is a space.

    Arguments:
        lines: ends of lines and tabs stay as they are.
    """

    def shown(found: re.Match[str]) -> str:
        character = found[0]
        if (lines and character in "\n\t") or unicodedata.category(character) not in _UNSEEN:
            return character
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    return _UNSURE.sub(shown, text)


def say(text: str, file: TextIO | None = None) -> None:
    """Print one line of which a part comes from a file; on standard output by default."""
    print(printable(text), file=file or sys.stdout)
