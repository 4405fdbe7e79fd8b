"""Mutation campaign: make small mistakes in a copy of the package, one at a time, and see which ones the tests catch.

    .venv/bin/python tools/mutate.py --count 60 --seed 1 -o mutants.json
    .venv/bin/python tools/mutate.py --selection fast --selection all    those that the fast selection lets through, by all tests
    .venv/bin/python tools/mutate.py --near --seed 1 -o near.json            only by tests of the mutant's own room: a lower bound
    .venv/bin/python tools/mutate.py --near --ran .coverage --seed 1          first by tests that ran the line (mutation_lines.py)
    .venv/bin/python tools/mutate.py --escaped-from near.json --seed 1       those that escaped, by all tests of the selection
    .venv/bin/python tools/mutate.py --escaped-from near.json --seed 1 --together    the same in few runs (mutation_group.py)
    .venv/bin/python tools/mutate.py --command "pytest -x tests/program"     by a command of your own

Mutants are drawn over all rooms by a seed, which is printed. For each one the tests that mirror its file run first, then those of
its sub-room, then those of its room, then all others, then linter and type checker, until one fails. Nothing is changed but a
private copy. Standard library only; run it with the Python of `.venv`.
"""

import argparse
import json
import os
import random
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import mutation_group
from mutants import ESCAPED, Mutant, Outcome, drawn, escaped_in, every, outcome, summary, table, write
from mutation_lines import RanLines
from mutation_steps import BIN, Step, collected, run, steps

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = shutil.ignore_patterns(".venv", ".*_cache", ".hypothesis", "__pycache__", "build", "dist", "*.egg-info")


def judged(mutant: Mutant, number: int, top: Path, asked: argparse.Namespace) -> Outcome:
    """Make the mistake, run commands until one catches it, and take it back."""
    path, one = top / mutant.path, mutant.mutation
    source, was = path.read_bytes(), path.stat()
    mistaken, start_s = one.applied(source), time.monotonic()
    result, name = ESCAPED, ""
    try:
        path.write_bytes(mistaken)
        # A time of its own for each mutant: what was compiled from another one is not taken for this one's.
        os.utime(path, (was.st_atime, was.st_mtime + 10 * (number + 1)))
        for step in commands(mutant, top, asked):
            result, name = run(step, top, asked.limit), step.name
            if result != ESCAPED:
                break
    finally:
        path.write_bytes(source)
        os.utime(path, (was.st_atime, was.st_mtime))
    step_name = "" if result == ESCAPED else name
    return outcome(mutant, source, result, step_name, round(time.monotonic() - start_s, 1))


def commands(mutant: Mutant, top: Path, asked: argparse.Namespace) -> Iterator[Step]:
    """What is run for a mutant."""
    if asked.command:
        words = shlex.split(asked.command)
        tool = BIN / words[0]
        yield Step("command", (str(tool) if tool.exists() else words[0], *words[1:]))
        return
    seen: set[tuple[str, ...]] = set()
    for selection in asked.selection or ["fast"]:
        for step in steps(mutant.path, top, selection, asked.near, asked.ran.tests(mutant, top) if asked.ran else ()):
            if step.command not in seen:
                seen.add(step.command)
                yield step


def each(chosen: Sequence[Mutant], top: Path, asked: argparse.Namespace) -> Iterator[Outcome]:
    """Outcomes of mutants one by one, in the order given: so many at a time as jobs are asked for, each in its own copy."""
    tops: SimpleQueue[Path] = SimpleQueue()
    tops.put(top)
    for number in range(1, asked.jobs):
        tops.put(copied(top.parent / str(number)))

    def judge(number: int, mutant: Mutant) -> Outcome:
        own = tops.get()
        try:
            return judged(mutant, number, own, asked)
        finally:
            tops.put(own)

    with ThreadPoolExecutor(asked.jobs) as pool:
        yield from pool.map(judge, range(len(chosen)), chosen)


def copied(folder: Path) -> Path:
    """A copy of the repository as it lies, with the public data of its neighbour, if there are any."""
    top = folder / "copy"
    shutil.copytree(ROOT, top, ignore=LEFT_OUT)
    if (ROOT.parent / "shared").is_dir():
        (folder / "shared").symlink_to(ROOT.parent / "shared")
    return top


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """Options."""
    said = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    said.add_argument("--count", type=int, default=60, help="mutants (60)")
    said.add_argument("--seed", type=int, default=None, help="which ones are drawn; a new seed is printed")
    said.add_argument("--only", default="", help="only files below this path, as hocket/program")
    said.add_argument(
        "--selection", action="append", choices=("fast", "all"), help="tests; the first that catches counts"
    )
    said.add_argument("--near", action="store_true", help="only tests of the mutant's own room, linter and types")
    said.add_argument(
        "--ran", type=lambda text: RanLines(Path(text)), help="tests first that ran the line, by .coverage"
    )
    said.add_argument("--escaped-from", type=Path, help="only mutants that escaped in this output of the same seed")
    said.add_argument("--together", action="store_true", help="many mistakes in one run, then each by what failed")
    said.add_argument("--command", default="", help="run this instead, in the copy; its failure catches a mutant")
    said.add_argument("-j", "--jobs", type=int, default=1, help="mutants at a time (1)")
    said.add_argument("--limit", type=float, default=1800.0, help="seconds for each command; longer counts as caught")
    said.add_argument("-o", "--output", type=Path, default=None, help="write the outcomes as JSON")
    said.add_argument("--list", action="store_true", help="only show which mutants are drawn")
    return said.parse_args(words)


def main(words: Sequence[str]) -> int:
    """Run a campaign. Returns the exit code: 1 where the tests fail without any mistake."""
    asked = parsed(words)
    seed = random.SystemRandom().randrange(2**32) if asked.seed is None else asked.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="hocket-mutants-") as folder:
        top = copied(Path(folder))
        chosen = drawn([one for one in every(top) if one.path.startswith(asked.only)], asked.count, seed)
        if asked.escaped_from:
            chosen = escaped_in(chosen, asked.escaped_from)
        if asked.list:
            print("\n".join(f"{one.mutation.kind:12} {one.path}:{one.mutation.line}" for one in chosen))
            return 0
        outcomes: list[Outcome] = []
        if asked.ran:
            asked.ran.known = frozenset().union(*(collected(top, one) for one in asked.selection or ["fast"]))
        if asked.together:
            outcomes = mutation_group.together(chosen, top, asked.selection or ["fast"], asked.limit)
            write(asked.output, seed, outcomes)
        elif (
            chosen
            and asked.command
            and any(run(step, top, asked.limit) != ESCAPED for step in commands(chosen[0], top, asked))
        ):
            print(f"`{asked.command}` fails without any mistake: mend that first.")
            return 1
        else:
            for found in each(chosen, top, asked):
                outcomes.append(found)
                print(table(outcomes[-1:]), flush=True)
                write(asked.output, seed, outcomes)
    print("\n" + table(outcomes), json.dumps(summary(outcomes), indent=1), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
