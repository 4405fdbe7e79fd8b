"""Tests that ran a given line, from a coverage measurement. Standard library only.

    .venv/bin/pip install pytest-cov
    .venv/bin/python -m pytest --fast -m "not workers" --cov=hocket --cov-context=test -n auto    writes .coverage

Only these tests can catch a mutation of the line. They are few, compared with thousands of tests in total.
"""

import ast
import random
import sqlite3
from collections import Counter
from functools import cache
from pathlib import Path
from threading import Lock

from mutants import Mutant

MOST = 60
"""Most tests of one line that run in a separate command."""
ALIKE = 3
"""Number of cases of one test function that run before further cases of any function."""


class RanLines:
    """Tests by the lines that they ran.

    Attributes:
        known: tests of the copy. pytest fails if it is given an unknown test, and that would count as a caught
            mutation.
    """

    def __init__(self, path: Path) -> None:
        self._all = sqlite3.connect(f"file:{path}?mode=ro", uri=True, check_same_thread=False)
        self._lock = Lock()
        self.known: frozenset[str] = frozenset()

    def tests(self, mutant: Mutant, top: Path) -> list[str]:
        """Tests that ran a mutant's statement, with tests of the nearest folders first.

        Arguments:
            top: folder of the repository copy that contains the mutant.

        Returns:
            [] if no test ran it, or if it runs at import, so that all tests do.
        """
        first, last = _statement((top / mutant.path).read_bytes(), mutant.mutation.line)
        found = {
            name.partition("|")[0]
            for name, lines in self._of(mutant.path)
            if name
            and any(line // 8 < len(lines) and lines[line // 8] >> line % 8 & 1 for line in range(first, last + 1))
        }
        parts, order = Path(mutant.path).parts[1:], sorted(found & self.known)
        random.Random(0).shuffle(order)
        seen: Counter[str] = Counter()

        def rank(test: str) -> tuple[bool, int]:
            seen[function := test.partition("[")[0]] += 1
            shared = (n for n in range(len(parts) + 1) if test.startswith("/".join(["tests", *parts[:n]])))
            return seen[function] > ALIKE, -max(shared)

        return sorted(order, key=rank)[:MOST]

    @cache  # noqa: B019 (one object per campaign)
    def _of(self, path: str) -> list[tuple[str, bytes]]:
        """Names of tests, each with one bit per line of a file."""
        query = """select context, numbits from line_bits join file on file.id = file_id join context
        on context.id = context_id where file.path like ?"""
        with self._lock:
            return self._all.execute(query, (f"%/{path}",)).fetchall()


def _statement(source: bytes, line: int) -> tuple[int, int]:
    """First and last line of the innermost statement at a line; for a statement with a body, of its head."""
    first, last = line, line
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            first = node.lineno
    return first, last
