"""Find which of many mutations the tests catch, with few runs. Standard library only.

A run with all mutations at once finds tests that fail. Then each mutation alone is tested with these tests only. A
mutation is caught only by a test that fails with it alone. The remaining mutations are tested together again, until no
new test fails.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

import bootstrap
from mutants import CAUGHT, ESCAPED, HUNG, Mutant, Outcome, outcome, table
from mutation_steps import PYTEST, Step, run

FAILURES = 40
"""Number of failed tests after which a run with many mutations ends."""

Mistake = TypeVar("Mistake")


def caught(
    mistakes: Sequence[Mistake],
    failing: Callable[[Sequence[Mistake], Collection[str]], list[str] | None],
    catches: Callable[[Mistake, Sequence[str]], bool],
) -> list[Mistake]:
    """Mutations that the tests catch, in the given order.

    Arguments:
        failing: called with mutations and tests to leave out. It returns some of the tests that fail with all these
            mutations
            at once; [] if all other tests pass; None if the run does not end.
        catches: returns True if one of the tests fails, or does not end, with one mutation alone.
    """
    left, elsewhere = list(mistakes), set[str]()
    while left:
        failed = failing(left, elsewhere)
        if failed is None:
            half = len(left) // 2
            found = (
                [one for part in (left[:half], left[half:]) for one in caught(part, failing, catches)] if half else left
            )
            return [one for one in mistakes if one not in left or one in found]
        if not failed:
            break
        still = [one for one in left if not catches(one, failed)]
        if len(still) == len(left):  # they fail with several mutations together, or by chance
            elsewhere |= set(failed)
        left = still
    return [one for one in mistakes if one not in left]


def together(mutants: Sequence[Mutant], top: Path, selections: Sequence[str], limit_s: float) -> list[Outcome]:
    """Outcomes of mutants that are tested all at once, with all tests of the selections."""
    left, outcomes, cache = list(mutants), [], top.parent / "cache"
    sources = {path: (top / path).read_bytes() for path in {one.path for one in mutants}}
    made = iter(range(1, 10**6))

    broken: set[str] = set()

    def last_failed() -> list[str]:
        """Tests that failed in the last run with this cache folder."""
        kept = cache / "v" / "cache" / "lastfailed"
        return sorted(json.loads(kept.read_text())) if kept.exists() else []

    def with_mistakes(some: Sequence[Mutant], step: Step) -> str:
        """Run a step with these mutations, and revert them."""
        mistaken = dict(sources)
        # from the end, so that earlier positions stay valid
        for one in sorted(some, key=lambda one: -one.mutation.start):
            mistaken[one.path] = one.mutation.applied(mistaken[one.path])
        own_s = time.time() + 10 * next(made)  # as in `judged` (mutate.py)
        try:
            for path, text in mistaken.items():
                (top / path).write_bytes(text)
                os.utime(top / path, (own_s, own_s))
            return run(step, top, limit_s)
        finally:
            for path, text in sources.items():
                (top / path).write_bytes(text)

    for selection in selections:
        fast = ("--fast",) if selection == "fast" else ()
        for name, command in bootstrap.tests(["--all"] if selection == "all" else []):
            words = tuple(word for word in command[1:] if word != bootstrap.SLOWEST)

            def failing(
                some: Sequence[Mutant],
                without: Collection[str],
                words: tuple[str, ...] = words,
                fast: tuple[str, ...] = fast,
            ) -> list[str] | None:
                shutil.rmtree(cache, ignore_errors=True)
                more = (
                    "-q",
                    f"--maxfail={FAILURES}",
                    "-o",
                    f"cache_dir={cache}",
                    *(f"--deselect={one}" for one in {*without, *broken}),
                )
                result = with_mistakes(some, Step("together", (sys.executable, "-m", "pytest", *words, *more)))
                if result != CAUGHT:
                    return None if result == HUNG else []
                failed = last_failed() or ["tests"]
                # Tests that also fail without any mutation prove nothing.
                again = (sys.executable, "-m", "pytest", "-q", "-o", f"cache_dir={cache}", *fast, *failed)
                shutil.rmtree(cache, ignore_errors=True)
                anyway = set(last_failed() if with_mistakes((), Step("none", again)) == CAUGHT else ())
                broken.update(anyway)
                print(*(f"fails without a mistake: {one}" for one in sorted(anyway)), sep="\n", flush=True)
                return [one for one in failed if one not in anyway] or failing(some, {*without, *anyway})

            def catches(one: Mutant, tests: Sequence[str], fast: tuple[str, ...] = fast) -> bool:
                return with_mistakes([one], Step("alone", (*PYTEST, *fast, *tests))) != ESCAPED

            start_s = time.monotonic()
            found = caught(left, failing, catches)
            seconds = round((time.monotonic() - start_s) / max(1, len(left)), 1)
            left = [one for one in left if one not in found]
            outcomes += [outcome(one, sources[one.path], CAUGHT, f"{selection}: {name}", seconds) for one in found]
            print(table(outcomes[-len(found) :] if found else []), flush=True)
    return outcomes + [outcome(one, sources[one.path], ESCAPED, "", 0.0) for one in left]
