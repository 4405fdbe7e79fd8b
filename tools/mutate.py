"""Mutation campaign: make small mistakes in a copy of the package, one at a time, and see which ones the tests catch.

    .venv/bin/python tools/mutate.py --count 60 --seed 1 -o mutants.json
    .venv/bin/python tools/mutate.py --selection fast --selection all    those that the fast selection lets through, by all tests
    .venv/bin/python tools/mutate.py --near --seed 1 -o near.json            only by tests of the mutant's own room: a lower bound
    .venv/bin/python tools/mutate.py --escaped-from near.json --seed 1       those that escaped, by all tests of the selection
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
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import bootstrap
from mutation_sites import Mutation, mutations

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider")
CAUGHT, ESCAPED, HUNG = "caught", "escaped", "timeout"


@dataclass(frozen=True)
class Mutant:
    """A mutation of a file of the package."""

    path: str
    mutation: Mutation

    @property
    def room(self) -> str:
        """The room of the file; a file at the top is its own."""
        return self.path.split("/")[1].removesuffix(".py")


@dataclass(frozen=True)
class Step:
    """A command that may catch a mutant."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: by which step it was caught, if any."""

    path: str
    line: int
    kind: str
    before: str
    after: str
    result: str
    step: str
    seconds: float


def every(top: Path) -> list[Mutant]:
    """All mutants of the package, in the order of files and text."""
    paths = sorted((top / "hocket").rglob("*.py"))
    return [Mutant(path.relative_to(top).as_posix(), one) for path in paths for one in mutations(path.read_bytes())]


def drawn(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """So many of them: one of each room first, then any, each at most once."""
    draw, rooms = random.Random(seed), defaultdict(list)
    for one in mutants:
        rooms[one.room].append(one)
    first = [draw.choice(rooms[name]) for name in sorted(rooms)]
    draw.shuffle(first)
    rest = list(set(mutants) - set(first))
    rest.sort(key=lambda one: (one.path, one.mutation.start, one.mutation.end, one.mutation.text))
    return (first + draw.sample(rest, min(len(rest), max(0, count - len(first)))))[:count]


def escaped_in(mutants: Sequence[Mutant], output: Path) -> list[Mutant]:
    """Mutants that escaped in an earlier campaign."""
    told = json.loads(output.read_text())["mutants"]
    escaped = {(one["path"], one["line"], one["kind"]) for one in told if one["result"] == ESCAPED}
    return [one for one in mutants if (one.path, one.mutation.line, one.mutation.kind) in escaped]


def mirrors(path: str, top: Path) -> Iterator[str]:
    """Tests of a file, of its sub-rooms from the nearest on, and of its room, as far as they exist."""
    parts = path.split("/")[1:]
    own = Path("tests", *parts[:-1], f"test_{parts[-1]}")
    for place in (own, *(Path("tests", *parts[:k]) for k in range(len(parts) - 1, 0, -1))):
        if (top / place).exists():
            yield place.as_posix()


def steps(path: str, top: Path, selection: str, near: bool = False) -> Iterator[Step]:
    """Commands of a selection of tests, the nearest to a file first.

    Arguments:
        near: leave out tests of other rooms.
    """
    fast = ("--fast",) if selection == "fast" else ()
    beside = bootstrap.side_by_side()
    for place in mirrors(path, top):
        spread = beside if not place.endswith(".py") else ()
        yield Step(f"{selection}: {place}", (*PYTEST, *fast, *spread, place))
    for name, command in () if near else bootstrap.tests([f"--{selection}"] if selection == "all" else []):
        yield Step(f"{selection}: {name}", (*PYTEST, *(word for word in command[1:] if word != bootstrap.SLOWEST)))
    yield Step("lint", (str(BIN / "ruff"), "check", "--no-cache", path))
    yield Step("types", (str(BIN / "mypy"),))


def run(step: Step, top: Path, limit_s: float) -> str:
    """How a command ends: a failure catches the mutant; one that does not end in time is ended, with all that it started."""
    # What is compiled, tests as well, is kept for the next mutant.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    compiled = top.parent / "compiled"
    environment |= {"PYTHONPATH": str(top), "PYTHONPYCACHEPREFIX": str(compiled), "NUMBA_CACHE_DIR": str(compiled)}
    process = subprocess.Popen(
        step.command,
        cwd=top,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return HUNG
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return ESCAPED if code in (0, bootstrap.NO_TESTS) else CAUGHT


def judged(mutant: Mutant, number: int, top: Path, asked: argparse.Namespace) -> Outcome:
    """Make the mistake, run commands until one catches it, and take it back."""
    path, one = top / mutant.path, mutant.mutation
    source, was = path.read_bytes(), path.stat()
    mistaken, start_s = one.applied(source), time.monotonic()
    before, after = (text.decode().splitlines()[one.line - 1].strip() for text in (source, mistaken))
    result, name = ESCAPED, ""
    try:
        path.write_bytes(mistaken)
        # A time of its own for each mutant: what was compiled from another one is not taken for this one's.
        os.utime(path, (was.st_atime, was.st_mtime + 10 * (number + 1)))
        for step in commands(mutant.path, top, asked):
            result, name = run(step, top, asked.limit), step.name
            if result != ESCAPED:
                break
    finally:
        path.write_bytes(source)
        os.utime(path, (was.st_atime, was.st_mtime))
    step_name = "" if result == ESCAPED else name
    seconds = round(time.monotonic() - start_s, 1)
    return Outcome(mutant.path, one.line, one.kind, before, after, result, step_name, seconds)


def commands(path: str, top: Path, asked: argparse.Namespace) -> Iterator[Step]:
    """What is run for a mutant of a file."""
    if asked.command:
        words = shlex.split(asked.command)
        tool = BIN / words[0]
        yield Step("command", (str(tool) if tool.exists() else words[0], *words[1:]))
        return
    seen: set[tuple[str, ...]] = set()
    for selection in asked.selection or ["fast"]:
        for step in steps(path, top, selection, asked.near):
            if step.command not in seen:
                seen.add(step.command)
                yield step


def copied(folder: Path) -> Path:
    """A copy of the repository as it lies, with the public data of its neighbour, if there are any."""
    top = folder / "copy"
    shutil.copytree(ROOT, top, ignore=LEFT_OUT)
    if (ROOT.parent / "shared").is_dir():
        (folder / "shared").symlink_to(ROOT.parent / "shared")
    return top


def summary(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Numbers of mutants by what became of them, and the part that was caught by the step before each next one."""
    results = Counter(one.result for one in outcomes)
    by = Counter(one.step.split(":")[0] for one in outcomes if one.step)
    found = len(outcomes) - results[ESCAPED]
    return {**results, "caught by": dict(by), "caught share": round(found / len(outcomes), 3) if outcomes else 0.0}


def table(outcomes: Sequence[Outcome]) -> str:
    """One line a mutant, those that escaped last with what was changed."""
    lines = [f"{o.result:8} {o.seconds:7.1f} s  {o.kind:12} {o.path}:{o.line}  {o.step}" for o in outcomes]
    for o in (o for o in outcomes if o.result == ESCAPED):
        lines += ["", f"escaped: {o.path}:{o.line} ({o.kind})", f"  - {o.before}", f"  + {o.after}"]
    return "\n".join(lines)


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
    said.add_argument("--escaped-from", type=Path, help="only mutants that escaped in this output of the same seed")
    said.add_argument("--command", default="", help="run this instead, in the copy; its failure catches a mutant")
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
        for number, mutant in enumerate(chosen):
            for step in commands(mutant.path, top, asked) if asked.command and not number else ():
                if run(step, top, asked.limit) != ESCAPED:
                    print(f"`{asked.command}` fails without any mistake: mend that first.")
                    return 1
            outcomes.append(judged(mutant, number, top, asked))
            print(table(outcomes[-1:]), flush=True)
            if asked.output:
                found = {"seed": seed, "summary": summary(outcomes), "mutants": [asdict(one) for one in outcomes]}
                asked.output.write_text(json.dumps(found, indent=1) + "\n")
    print("\n" + table(outcomes), json.dumps(summary(outcomes), indent=1), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
