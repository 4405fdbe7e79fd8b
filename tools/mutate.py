"""Mutation campaign: apply mutations to a copy of the package, one at a time, and find the ones that no test catches.

    .venv/bin/python tools/mutate.py --count 60 --seed 1 -o mutants.json
    .venv/bin/python tools/mutate.py --selection fast --selection all    # all tests for mutants that the fast ones miss
    .venv/bin/python tools/mutate.py --near --seed 1 -o near.json        # tests of the mutant's own room: a lower bound
    .venv/bin/python tools/mutate.py --near --ran .coverage --seed 1     # first tests that ran it (mutation_lines.py)
    .venv/bin/python tools/mutate.py --escaped-from near.json --seed 1   # escaped mutants, with the whole selection
    .venv/bin/python tools/mutate.py --escaped-from near.json --seed 1 --together  # in few runs (mutation_group.py)
    .venv/bin/python tools/mutate.py --command "pytest -x tests/program" # with your own command

Mutants are drawn from all rooms with a seed, which is printed. For each mutant, steps run until one fails: tests that
mirror its file, tests of its sub-room, tests of its room, all other tests, linter, and type checker. Only a private
copy is changed. Standard library only; run it with the Python of `.venv`.
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
from mutation_steps import BIN, Step, checks, collected, run, steps

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = shutil.ignore_patterns(".venv", ".*_cache", ".hypothesis", "__pycache__", "build", "dist", "*.egg-info")


def judged(mutant: Mutant, number: int, top: Path, options: argparse.Namespace) -> Outcome:
    """Apply a mutation, run commands until one catches it, and revert it."""
    path, one = top / mutant.path, mutant.mutation
    source, was = path.read_bytes(), path.stat()
    mistaken, start_s = one.applied(source), time.monotonic()
    result, name = ESCAPED, ""
    try:
        path.write_bytes(mistaken)
        # Each mutant gets its own file time, so that no compiled file of another mutant is used.
        os.utime(path, (was.st_atime, was.st_mtime + 10 * (number + 1)))
        for step in commands(mutant, top, options):
            result, name = run(step, top, options.limit), step.name
            if result != ESCAPED:
                break
    finally:
        path.write_bytes(source)
        os.utime(path, (was.st_atime, was.st_mtime))
    step_name = "" if result == ESCAPED else name
    return outcome(mutant, source, result, step_name, round(time.monotonic() - start_s, 1))


def commands(mutant: Mutant, top: Path, options: argparse.Namespace) -> Iterator[Step]:
    """Yield the commands for a mutant."""
    if options.command:
        words = shlex.split(options.command)
        tool = BIN / words[0]
        yield Step("command", (str(tool) if tool.exists() else words[0], *words[1:]))
        return
    seen: set[tuple[str, ...]] = set()
    for selection in options.selection or ["fast"]:
        for step in steps(
            mutant.path, top, selection, options.near, options.ran.tests(mutant, top) if options.ran else ()
        ):
            if step.command not in seen:
                seen.add(step.command)
                yield step


def failing_by_itself(mutant: Mutant, top: Path, options: argparse.Namespace) -> str:
    """Return the command, or the linter or type checker, that fails without any mutation; empty if none does.

    It would seem to catch every mutant.
    """
    tried = commands(mutant, top, options) if options.command else checks("hocket")
    for step in tried:
        if run(step, top, options.limit) != ESCAPED:
            return options.command or shlex.join([Path(step.command[0]).name, *step.command[1:]])
    return ""


def each(chosen: Sequence[Mutant], top: Path, options: argparse.Namespace) -> Iterator[Outcome]:
    """Yield the outcomes of mutants in the given order.

    `--jobs` mutants are tested at the same time, each in its own copy.
    """
    tops: SimpleQueue[Path] = SimpleQueue()
    tops.put(top)
    for number in range(1, options.jobs):
        tops.put(copied(top.parent / str(number)))

    def judge(number: int, mutant: Mutant) -> Outcome:
        own = tops.get()
        try:
            return judged(mutant, number, own, options)
        finally:
            tops.put(own)

    with ThreadPoolExecutor(options.jobs) as pool:
        yield from pool.map(judge, range(len(chosen)), chosen)


def copied(folder: Path) -> Path:
    """Copy of the working tree, with a link to the public data beside the repository, if it exists."""
    top = folder / "copy"
    shutil.copytree(ROOT, top, ignore=LEFT_OUT)
    if (ROOT.parent / "shared").is_dir():
        (folder / "shared").symlink_to(ROOT.parent / "shared")
    return top


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """Parse the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60, help="number of mutants (60)")
    parser.add_argument("--seed", type=int, default=None, help="seed of the draws; by default random and printed")
    parser.add_argument("--only", default="", help="only files below this path, such as hocket/program")
    parser.add_argument(
        "--selection",
        action="append",
        choices=("fast", "all"),
        help="selection of tests; if repeated, they run in this order",
    )
    parser.add_argument(
        "--near", action="store_true", help="run only tests of the mutant's own room, linter and type checker"
    )
    parser.add_argument(
        "--ran",
        type=lambda text: RanLines(Path(text)),
        help="coverage file: tests that ran the mutated line come first",
    )
    parser.add_argument(
        "--escaped-from", type=Path, help="test only mutants that escaped in this output with the same seed"
    )
    parser.add_argument(
        "--together", action="store_true", help="test many mutations in one run, then each with the failed tests"
    )
    parser.add_argument(
        "--command", default="", help="run this command in the copy instead; a failure catches the mutant"
    )
    parser.add_argument("-j", "--jobs", type=int, default=1, help="mutants tested at the same time (1)")
    parser.add_argument(
        "--limit", type=float, default=1800.0, help="time limit of each command in seconds; a timeout counts as caught"
    )
    parser.add_argument("-o", "--output", type=Path, default=None, help="write the outcomes as JSON")
    parser.add_argument("--list", action="store_true", help="only print the drawn mutants")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    """Run a campaign, and return the exit code: 1 if the tests fail without any mutation."""
    options = parsed(words)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="hocket-mutants-") as folder:
        top = copied(Path(folder))
        chosen = drawn([one for one in every(top) if one.path.startswith(options.only)], options.count, seed)
        if options.escaped_from:
            chosen = escaped_in(chosen, options.escaped_from)
        if options.list:
            print("\n".join(f"{one.mutation.kind:12} {one.path}:{one.mutation.line}" for one in chosen))
            return 0
        outcomes: list[Outcome] = []
        if options.ran:
            options.ran.known = frozenset().union(*(collected(top, one) for one in options.selection or ["fast"]))
        if options.together:
            outcomes = mutation_group.together(chosen, top, options.selection or ["fast"], options.limit)
            write(options.output, seed, outcomes)
        elif chosen and (failing := failing_by_itself(chosen[0], top, options)):
            print(f"`{failing}` fails without any mistake: mend that first.")
            return 1
        else:
            for found in each(chosen, top, options):
                outcomes.append(found)
                print(table(outcomes[-1:]), flush=True)
                write(options.output, seed, outcomes)
    print("\n" + table(outcomes), json.dumps(summary(outcomes), indent=1), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
