"""Errors of program texts with drawn mistakes, equal to those that are kept in errors.txt.

After a change that is meant, write them again with --update-golden, and read the difference.
"""

import re
from pathlib import Path
from random import Random

import pytest

from hocket.errors import InputError
from hocket.program.text.printer import parse_program, print_program
from tests.kept import check
from tests.program.helpers.programs import CASES

EACH = 10
WORDS = ("7", "-1", "x", "optimiser", "stage", "device", "period", "sharded", "0,1", "update", "")


def mistaken(draw: Random, text: str) -> tuple[str, str]:
    """What is wrong now, and a text with a line left out, twice or elsewhere, or with another word."""
    lines = text.splitlines()
    header = next((k for k, line in enumerate(lines) if line.startswith(("prologue", "period"))), 1)
    at = draw.randrange(header) if draw.random() < 0.5 else draw.randrange(len(lines))
    line = lines[at]
    match draw.choice(("drop", "twice", "move", "word", "word", "word", "cut")):
        case "drop":
            return f"without {line!r}", "\n".join(lines[:at] + lines[at + 1 :])
        case "twice":
            return f"twice {line!r}", "\n".join([*lines[: at + 1], *lines[at:]])
        case "move":
            return f"{line!r} at the end", "\n".join([*lines[:at], *lines[at + 1 :], line])
        case "cut":
            return f"{line!r} cut", "\n".join([*lines[:at], line[: len(line) // 2], *lines[at + 1 :]])
    words = re.findall(r"[\w.,-]+|\W+", line) or [""]
    place, word = draw.randrange(len(words)), draw.choice(WORDS)
    new = "".join([*words[:place], word, *words[place + 1 :]])
    return f"{new!r} for {line!r}", "\n".join([*lines[:at], new, *lines[at + 1 :]])


def test_errors(update_golden: bool) -> None:
    """Place, what was found and what was expected; or what the text is read as."""
    lines = []
    for case in CASES[::2]:
        draw, text = Random(f"text {case.name}"), print_program(case.program())
        for _ in range(EACH):
            told, wrong = mistaken(draw, text)
            try:
                found = "read" if parse_program(wrong) == case.program() else "read as another program"
            except InputError as error:
                found = str(error)
            lines.append(f"{case.name}, {told}: {found}")
    check(Path(__file__).with_name("errors.txt"), "\n".join(lines) + "\n", update_golden)


def test_an_unknown_shard_is_refused() -> None:
    """The error has the line, the word, all known words, and the nearest of them."""
    case = next(case for case in CASES if case.name == "flush-2-2-m4-optimizer")
    text = print_program(case.program())
    with pytest.raises(InputError, match=r"found 'optimiser'; expected one of none, optimizer, full.*optimizer"):
        parse_program(text.replace("shard optimizer", "shard optimiser", 1))
