"""Mutants of the package, and the results of testing them. Standard library only."""

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
        """Room (first folder) of the file; a file at the top is its own room."""
        return self.path.split("/")[1].removesuffix(".py")


@dataclass(frozen=True)
class Outcome:
    """Result of testing a mutant.

    Attributes:
        before, after: the changed line, without and with the mutation.
        result: CAUGHT, ESCAPED or HUNG.
        step: name of the step that caught the mutant; empty if it escaped.
        seconds: duration of all its steps.
    """

    path: str
    line: int
    kind: str
    before: str
    after: str
    result: str
    step: str
    seconds: float


def every(top: Path) -> list[Mutant]:
    """All mutants of the package, sorted by file and position."""
    paths = sorted((top / "hocket").rglob("*.py"))
    return [Mutant(path.relative_to(top).as_posix(), one) for path in paths for one in mutations(path.read_bytes())]


def drawn(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """Draw `count` mutants at random, each at most once: one of each room first, then any."""
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
    outcomes = json.loads(output.read_text())["mutants"]
    escaped = {(one["path"], one["line"], one["kind"]) for one in outcomes if one["result"] == ESCAPED}
    return [one for one in mutants if (one.path, one.mutation.line, one.mutation.kind) in escaped]


def outcome(mutant: Mutant, source: bytes, result: str, step: str, seconds: float) -> Outcome:
    """Outcome of a mutant, with its line before and after the mutation."""
    one = mutant.mutation
    before, after = (text.decode().splitlines()[one.line - 1].strip() for text in (source, one.applied(source)))
    return Outcome(mutant.path, one.line, one.kind, before, after, result, step, seconds)


def summary(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Numbers of mutants by result and by the step that caught them, and the share of caught mutants."""
    results = Counter(one.result for one in outcomes)
    by = Counter(one.step.split(":")[0] for one in outcomes if one.step)
    found = len(outcomes) - results[ESCAPED]
    return {**results, "caught by": dict(by), "caught share": round(found / len(outcomes), 3) if outcomes else 0.0}


def table(outcomes: Sequence[Outcome]) -> str:
    """One line per mutant, then the changes of the mutants that escaped."""
    lines = [f"{o.result:8} {o.seconds:7.1f} s  {o.kind:12} {o.path}:{o.line}  {o.step}" for o in outcomes]
    for o in (o for o in outcomes if o.result == ESCAPED):
        lines += ["", f"escaped: {o.path}:{o.line} ({o.kind})", f"  - {o.before}", f"  + {o.after}"]
    return "\n".join(lines)


def write(output: Path | None, seed: int, outcomes: Sequence[Outcome]) -> None:
    """Write the outcomes as JSON, if a file is given."""
    if output:
        found = {"seed": seed, "summary": summary(outcomes), "mutants": [asdict(one) for one in outcomes]}
        output.write_text(json.dumps(found, indent=1) + "\n")
