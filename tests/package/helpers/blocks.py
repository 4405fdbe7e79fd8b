"""Code blocks of pages: which there are, and running them in a folder of ready-made files.

A comment on the line before a block says what it is: `<!-- not run: REASON -->`, or `<!-- file: NAME -->` for a file that later blocks
of the page use. A block without a comment is run: `python` in the page's namespace, `bash` command by command. A file with a NAME such
as hocket/scheduler/policies/NAME.py is a member of that package while the page is run.
"""

import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.cli import main
from hocket.util import registry

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


@contextmanager
def members_of(blocks: list[Block]) -> Iterator[None]:
    """Packages also have the members that are files of this page, below the working directory."""
    files = [Path(block.mark.removeprefix("file: ")) for block in blocks if block.mark.startswith("file: hocket/")]
    packages = {file: importlib.import_module(".".join(file.parent.parts)) for file in files}
    for file, package in packages.items():
        package.__path__.append(str(file.parent.absolute()))
    registry.names.cache_clear()
    try:
        yield
    finally:
        for file, package in packages.items():
            package.__path__.remove(str(file.parent.absolute()))
            sys.modules.pop(f"{package.__name__}.{file.stem}", None)
        registry.names.cache_clear()


def run_page(blocks: list[Block], name: str) -> None:
    """Run the blocks of one page in the working directory, in order; profiles are measured for a shorter time."""
    with members_of(blocks):
        _run(blocks, name)


def _run(blocks: list[Block], name: str) -> None:
    space: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        place = f"{name}:{block.line}"
        if not block.runs:
            continue
        if block.mark.startswith("file: "):
            file = Path(block.mark.removeprefix("file: "))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
        elif block.kind == "python":
            exec(compile(block.text, place, "exec"), space)
        else:
            for words in commands_in(block.text):
                assert words[0] == "hocket", f"{place}: only hocket is run here, not {words[0]}"
                shorter = ("--budget-s", "2") if words[1:2] == ["profile"] else ()
                assert main([*words[1:], *shorter]) == 0, f"{place}: {' '.join(words)}"
