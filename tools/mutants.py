"""Mutants of the package, and what became of them. Standard library only."""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mutation_sites import Mutation, mutations

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


def outcome(mutant: Mutant, source: bytes, result: str, step: str, seconds: float) -> Outcome:
    """What became of a mutant, with its line before and after."""
    one = mutant.mutation
    before, after = (text.decode().splitlines()[one.line - 1].strip() for text in (source, one.applied(source)))
    return Outcome(mutant.path, one.line, one.kind, before, after, result, step, seconds)


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


def write(output: Path | None, seed: int, outcomes: Sequence[Outcome]) -> None:
    """Write the outcomes as JSON, if a file was asked for."""
    if output:
        found = {"seed": seed, "summary": summary(outcomes), "mutants": [asdict(one) for one in outcomes]}
        output.write_text(json.dumps(found, indent=1) + "\n")
