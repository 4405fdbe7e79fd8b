"""Plain English: first lines of docstrings stand alone, and a few patterns that read badly stay out."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.package.helpers.sources import FILES, name_of, tree_of

# Heads that need the signature, or an earlier sentence, to mean anything.
HEADS = re.compile(
    r"(Of|That|What(?!-if)|Those|Whether|How|Who|Whose|Likewise|The same|As (?!JSON)|Nothing|None|Nobody|Everything|It|So|Such)\b"
)
LONGEST_FIRST_LINE = 120
PUZZLES = ("what of ", "those that ", "whose ", "that of which", "by sizes", "makes again", "made again")


def docstrings() -> Iterator[tuple[str, str]]:
    """Place and text of every docstring of the package."""
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    line = 1 if isinstance(node, ast.Module) else node.lineno
                    yield f"hocket/{name_of(path)}:{line}", text


def odd_heads() -> list[str]:
    """First lines that begin with a relative clause, a pronoun or a bare preposition."""
    return [f"{place}: {text.splitlines()[0]}" for place, text in docstrings() if HEADS.match(text)]


def long_heads() -> list[str]:
    """First lines of more than 120 characters."""
    return [place for place, text in docstrings() if len(text.splitlines()[0]) > LONGEST_FIRST_LINE]


def puzzles() -> list[str]:
    """Docstrings with a relative-clause puzzle where a technical noun exists."""
    return [f"{place}: {one!r}" for place, text in docstrings() for one in PUZZLES if one in text.lower()]


COUNTS = ((odd_heads, 0), (long_heads, 69), (puzzles, 171))


@pytest.mark.parametrize(("places", "most"), COUNTS, ids=[places.__name__ for places, _ in COUNTS])
def test_english_only_gets_plainer(places: object, most: int) -> None:
    """No more than today; the number follows when it falls."""
    assert callable(places)
    found = places()
    listed = "\n".join(found)
    assert len(found) <= most, f"{len(found)}, at most {most}: {places.__doc__}\n{listed}"
