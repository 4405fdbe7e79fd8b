"""Explanation of a plan: bottlenecks, what-if results, refused candidates."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.cli.output.progress import Progress, interruptible
from hocket.cli.output.table import print_table
from hocket.printable import say
from hocket.util.units import show_count, show_gap

if TYPE_CHECKING:
    from hocket.planning.explain.baseline_comparison import BaselineComparison
    from hocket.planning.explain.what_if import ScenarioResult
    from hocket.planning.load import LoadedPlan
    from hocket.planning.search.result import Refused
    from hocket.simulation.critical_path import PathSeconds

Explain = Annotated[
    bool, typer.Option("--explain/--no-explain", help="Show what limits the best plan, and what would help most.")
]
Candidates = Annotated[bool, typer.Option("--candidates", help="Also list refused candidates, each with its reason.")]
Report = Callable[[int, int, str], None]
"""Progress callback with (done, total, label); a total of 0 is unknown."""
_LEAST = 0.0005  # shares of the critical path, and gains, below this count as zero


class Explained:
    """Explanation of a plan: its bottlenecks, and what-if results.

    Arguments:
        opened: the plan and its profile.
        answers: what-if results to show.
        verdict: comparison of the best plan with a pipeline and the best plan without one.
        runner_up: sentence on the second-best candidate; empty for none.
        amplification: amplification of the "best" plan and of the "runner_up" (None without one), and the "limit";
            None if the search had no limit.
        buckets: sentence on gradient buckets; empty for none.
    """

    def __init__(
        self,
        opened: "LoadedPlan",
        answers: "Sequence[ScenarioResult]",
        verdict: "BaselineComparison",
        runner_up: str = "",
        amplification: "Mapping[str, Any] | None" = None,
        buckets: str = "",
    ) -> None:
        from hocket.planning.predict.predict import shorter_runs

        self.plan, self.answers, self.verdict, self.runner_up = opened.plan, answers, verdict, runner_up
        self.amplification = amplification or {}
        self.buckets = buckets
        self.path: PathSeconds = shorter_runs(opened.run).critical_path
        self.predicted = opened.plan.predicted or opened.predicted

    def shares(self) -> dict[str, float]:
        """Return the share of the critical path by part, the largest share first.

        Parts are "compute", "link NAME", "host link" and "waiting". Shares below 0.05 % are left out.
        """
        path = self.path
        seconds = {"compute": sum(path.compute_s.values()), "host link": path.host_s, "waiting": path.waiting_s}
        seconds |= {f"link {name}": s for name, s in path.link_s.items()}
        whole = path.iteration_s or 1.0
        return {name: s / whole for name, s in sorted(seconds.items(), key=lambda one: -one[1]) if s >= _LEAST * whole}

    def fullest(self) -> tuple[int, float]:
        """Return the device (or group) with the fullest memory, and its share in use."""
        cluster = self.plan.group.cluster
        shares = {d: size / cluster.capacity_bytes(d) for d, size in self.predicted.peak_memory_bytes.items()}
        device = max(shares, key=lambda d: (shares[d], -d))
        return device, shares[device]

    def lines(self) -> Iterator[str]:
        """Yield sentences on the choice of the plan and its bottlenecks."""
        what = "device" if self.plan.tensor == 1 else "group"
        busiest, seconds = max(self.path.compute_s.items(), key=lambda one: one[1], default=(0, 0.0))
        device, share = self.fullest()
        parts = []
        for name, part in self.shares().items():
            where = (
                f" (on {what} {busiest} {seconds / self.path.iteration_s:.0%})"
                if name == "compute" and len(self.path.compute_s) > 1
                else ""
            )
            parts.append(f"{name} {part:.1%}{where}")
        parts.append(f"bubble {self.predicted.bubble_fraction:.1%}")
        if self.runner_up:
            yield self.runner_up
        if self.amplification:
            yield self._spent()
        if self.buckets:
            yield self.buckets
        yield self.verdict.text
        if self.verdict.stale:
            yield self.verdict.stale_text
        yield from self.verdict.waves
        yield f"limits: of the critical path {', '.join(parts)}; memory {share:.0%} of {what} {device}"

    def _spent(self) -> str:
        """Describe the amplification of the plan and of the runner-up, in a sentence."""
        from hocket.planning.burst.amplification_limit import alone_words

        best, other = self.amplification["best"], self.amplification["runner_up"]
        alone = f"by the seconds of {alone_words(self.plan.cluster)}"
        limit = f"amplification {best:.2f} of {self.amplification['limit']:g}: device-seconds of an iteration {alone}"
        return limit if other is None else f"{limit}; {other:.2f} of the runner-up"

    def print(self) -> None:
        """Print the sentences and the table of what-if results."""
        for line in self.lines():
            say(f"  {line}")
        print_answers(self.answers, "what would help: samples per second, against now")

    def json(self) -> dict[str, Any]:
        """Return bottlenecks and what-if results as plain data."""
        device, share = self.fullest()
        limits = {
            "critical_path": self.shares(),
            "compute_s_by_device": {str(d): s for d, s in self.path.compute_s.items()},
            "bubble_fraction": self.predicted.bubble_fraction,
            "fullest_device": device,
            "memory_share": share,
        }
        names = ("winner", "other", "loses", "stale", "stale_gains")
        kinds = {name: getattr(self.verdict, name) for name in names} | {"waves": list(self.verdict.waves)}
        verdict = {**kinds, "reason": self.verdict.why, "text": self.verdict.text}
        return {
            "verdict": verdict,
            "buckets": self.buckets,
            "limits": limits,
            "what_if": [answer_json(one) for one in self.answers],
        } | ({"amplification": dict(self.amplification)} if self.amplification else {})


@dataclass(frozen=True)
class Explanation:
    """Explanation of a search's best plan, computed when it is printed.

    The computation may take longer than the search. So the plan is shown and written before.

    Attributes:
        explain: True to show bottlenecks and what-if results.
        refusals: True to show refused candidates.
        explained: function (result of the search, progress callback) that computes bottlenecks and what-if results. It
            may take minutes for a large cluster.
        refused: function of the search's result that returns the refused candidates. It may take seconds.
    """

    explain: bool
    refusals: bool
    explained: Callable[[Any, Report | None], Explained]
    refused: "Callable[[Any], Sequence[Refused]]"

    def print(self, found: Any, written: Path | None = None) -> None:
        """Print the explanation as tables and sentences.

        Arguments:
            written: file of the plan, which was written before; None without one.

        Raises:
            KeyboardInterrupt: interrupted; the text names the file.
        """
        if written and (self.explain or self.refusals):
            print()
        sys.stdout.flush()  # the reader of a pipe or of a log file sees the plan now
        with interruptible("explaining the plan", written):
            if self.explain:
                with Progress("explaining", True) as progress:
                    told = self.explained(found, progress)
                told.print()
            if self.refusals:
                with Progress("refused candidates", True):
                    refused = self.refused(found)
                print_refused(refused)

    def json(self, found: Any, written: Path | None = None) -> dict[str, Any]:
        """Return the explanation as plain data.

        Arguments:
            written: file of the plan, which was written before; None without one.

        Raises:
            KeyboardInterrupt: interrupted; the text names the file.
        """
        from hocket.util.schema import as_data

        with interruptible("explaining the plan", written):
            told = self.explained(found, None).json() if self.explain else {}
            return told | ({"refused": [as_data(one) for one in self.refused(found)]} if self.refusals else {})


def answer_json(answer: "ScenarioResult") -> dict[str, Any]:
    """Return a what-if result as plain data; gains are relative to the throughput now."""
    return {
        "question": answer.question.text,
        "same_plan": answer.same,
        "planned_anew": answer.anew,
        "at_most": answer.at_most,
        "plan": answer.plan,
        "reason": answer.why,
    }


def print_answers(answers: "Sequence[ScenarioResult]", title: str) -> None:
    """Print what-if results as a table, the largest gain first."""
    print()
    ordered = sorted(answers, key=lambda one: -one.gain)
    anew = any(one.anew is not None for one in ordered)

    def gain(share: float | None, at_most: bool = False) -> str:
        if share is None:
            return "-"
        told = f"{share:+.1%}" if abs(share) >= _LEAST else "nothing"
        return f"at most {told}" if at_most and abs(share) >= _LEAST else told

    rows = [[one.question.text, gain(one.same), gain(one.anew, one.at_most), one.plan or one.why] for one in ordered]
    columns = ["what if", "same plan", "planned anew", "plan"]
    shown = [0, 1, 2, 3] if anew else [0, 1, 3] if any(row[3] for row in rows) else [0, 1]
    print_table(
        title, [columns[k] for k in shown], [[row[k] for k in shown] for row in rows], right=(1, 2) if anew else (1,)
    )


def answered(answers: "Sequence[ScenarioResult]") -> "list[ScenarioResult]":
    """Return the what-if results to show.

    A scenario with another device speed is left out if it has no result. This happens if the device's rate for the
    compute dtype is unknown.
    """
    return [one for one in answers if one.question.change.rate == 1 or one.same is not None or one.anew is not None]


def print_refused(refused: "Sequence[Refused]", most: int = 60) -> None:
    """Print refused candidates with reasons.

    Candidates that were refused for memory come first, the least missing memory before more.

    Arguments:
        most: maximum number of rows.
    """
    ordered = sorted(refused, key=lambda one: (not one.missing_bytes, one.missing_bytes))
    rows = [[one.strategy, one.config or "any", one.reason] for one in ordered[:most]]
    if rows:
        print_table(f"refused: {len(refused)}, of which {len(rows)} are shown", ["strategy", "config", "reason"], rows)


def explained_sizes(found: Any, progress: Report | None = None) -> Explained:
    """Explain the best plan of an analytic model.

    Arguments:
        found: result of the search, a `SizedSearch`.
    """
    from hocket.planning.explain.baseline_comparison import of_sizes
    from hocket.planning.explain.what_if import ask_sizes, fewer, usual
    from hocket.planning.load import LoadedPlan

    questions, alone = usual(found.cluster), fewer(found.cluster, found.best.predicted.bubble_fraction)
    answers, steps = [], len(questions) + len(alone) + 1
    report = progress or (lambda *_: None)
    for k, question in enumerate((*questions, *alone)):
        report(k, steps, f"what if {question.text}")
        one = ask_sizes(found, question, search=k >= len(questions))
        if k < len(questions) or one.gain > 0:
            answers.append(one)
    report(steps - 1, steps, "the best plans of other kinds")
    opened = LoadedPlan(found.plan(found.best), found.profile_of(found.best))
    return Explained(opened, answered(answers), of_sizes(found), buckets=found.buckets_text)


def explained_profile(found: Any, progress: Report | None = None) -> Explained:
    """Explain the best plan of a profiled job.

    Arguments:
        found: result of the search, a `Search`.
    """
    from hocket.planning.explain.baseline_comparison import of_profile, with_stale
    from hocket.planning.explain.what_if import ask_profile, usual
    from hocket.planning.waves.explain import why_not

    plan = found.best.plan

    def searching(what: str) -> Report | None:
        """Return a progress callback with the search's purpose in its label."""
        if progress is None:
            return None
        progress(0, 0, what)
        return lambda done, total, at: progress(done, total, f"{what}: {at}")

    answers = [
        ask_profile(found, question, False, searching(f"what if {question.text}"))
        for question in usual(plan.cluster, plan.swap is not None)
    ]
    verdict = with_stale(of_profile(found), found, searching("plans with old weights"))
    verdict = replace(verdict, waves=tuple(why_not(found)))
    amplification = None
    if found.best.amplification is not None:
        runner_up = found.candidates[1].amplification if found.candidates[1:] else None
        amplification = {"limit": found.request.amplification_limit, "best": found.best.amplification}
        amplification["runner_up"] = runner_up
    opened = found.loaded(found.best)
    return Explained(opened, answered(answers), verdict, _runner_up(found), amplification, found.best.buckets)


def _runner_up(found: Any) -> str:
    """Compare the best candidate with the runner-up, in a sentence.

    For analytic models the table shows both instead.
    """
    best, *rest = found.candidates
    if not rest:
        if found.considered == 1:
            return ""
        refused = sum(bool(one.config) for one in found.refused)
        slower = found.considered - 1 - refused
        why = [f"{refused} refused (--candidates says why)"] * bool(refused)
        why += [f"{slower} not simulated, because even their lower bounds are slower"] * (slower > 0)
        return f"{best.label} is the fastest of {found.considered} choices; of the others {' and '.join(why)}"
    more = rest[0].iteration_s / best.iteration_s - 1
    other = rest[0].label if rest[0].label != best.label else "the same with other stage boundaries or options"
    first = "is the fastest" if more >= 0 else "is preferred among equals, with fewer stages or devices,"
    return f"{best.label} {first} of {show_count(found.considered, 'choice')}; runner-up: {other} {show_gap(more)}"
