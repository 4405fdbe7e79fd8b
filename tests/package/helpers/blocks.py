"""Code blocks of pages: which there are, and running them in a folder of ready-made files.

A comment on the line before a block says what it is: `<!-- not run: REASON -->`, or `<!-- file: NAME -->` for a file that later blocks
of the page use. A block without a comment is run: `python` in the page's namespace, `bash` command by command.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.cli import main

BLOCK = re.compile(
    r"(?:^ *<!-- (?P<mark>[^\n]*?) -->\n)?^(?P<indent> *)```(?P<kind>[a-z]*)\n(?P<text>.*?)^ *```$", re.M | re.S
)
COMMAND = re.compile(r"^\s*(?:\$ )?(?:hocket|python3?|pip|torchrun|make|bash|cd|source|git) ", re.M)


@dataclass(frozen=True)
class Block:
    """One code block: its line in the page, the comment before it, its language and text."""

    line: int
    mark: str
    kind: str
    text: str

    @property
    def problem(self) -> str:
        """Why this block is neither run, nor written, nor marked; empty if it is."""
        if self.mark and not re.match(r"(not run|file): \S", self.mark):
            return f"unknown comment {self.mark!r}"
        if self.kind == "text":
            return "a command in a block of output" if COMMAND.search(self.text) else ""
        if self.kind in ("python", "bash") or self.mark:
            return ""
        return f"a block of {self.kind or 'no language'} is a file (`file: NAME`) or is not run (`not run: REASON`)"

    @property
    def runs(self) -> bool:
        """Whether a test runs it, or writes it as a file."""
        return self.kind != "text" and not self.mark.startswith("not run")


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page."""
    text = page.read_text()
    found = []
    for match in BLOCK.finditer(text):
        body = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.M)
        found.append(Block(text.count("\n", 0, match.start("kind")) + 1, match["mark"] or "", match["kind"], body))
    return found


def commands_in(text: str) -> list[list[str]]:
    """Words of each command: continued lines joined, comments left out."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def run_page(blocks: list[Block], name: str) -> None:
    """Run the blocks of one page in the working directory, in order."""
    space: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        place = f"{name}:{block.line}"
        if not block.runs:
            continue
        if block.mark.startswith("file: "):
            Path(block.mark.removeprefix("file: ")).write_text(block.text)
        elif block.kind == "python":
            exec(compile(block.text, place, "exec"), space)
        else:
            for words in commands_in(block.text):
                assert words[0] == "hocket", f"{place}: only hocket is run here, not {words[0]}"
                assert main(words[1:]) == 0, f"{place}: {' '.join(words)}"
