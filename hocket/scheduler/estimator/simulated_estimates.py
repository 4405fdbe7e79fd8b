"""Estimated throughputs of jobs that share workers, in simulations.

Some kinds of jobs were profiled beside each other earlier. For every other kind, a few pairs are measured on separate
workers before the first round; the estimator fills in the rest. Policies see estimates, while jobs run at true
throughputs. A pair that runs in a round is measured; its value is then known, and all affected estimates are
recomputed.
Source: Narayanan's dissertation, section 5.6 and Figure 5.8; the effect on job completion times is Figure 5.16.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from hocket.errors import InputError
from hocket.scheduler.core.events import SharingMeasured
from hocket.scheduler.estimator.estimator import Estimator, PairMeasurement
from hocket.scheduler.model.throughputs import ThroughputTable
from hocket.scheduler.model.worker_types import ClusterSpec

__all__ = ["Estimating", "Learner", "profiled"]

_SAME = 1e-9  # tolerance of shares of throughput


@dataclass(frozen=True)
class Estimating:
    """Settings for estimated throughputs of pairs in a simulation.

    Attributes:
        references: number of reference kinds, profiled beside each other; drawn from the kinds that share workers.
        pairs: number of pairs with reference kinds that are measured for each other kind before the first round, the
            most informative first.
        refine: True to measure the pairs that run in rounds and recompute the estimates.
        seed: seed of the draw and of the initial factors of the matrix completion.
    """

    references: int = 13
    pairs: int = 4
    refine: bool = True
    seed: int = 0

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.references < 1:
            raise InputError("estimating: references", str(self.references), ">= 1")
        if self.pairs < 0:
            raise InputError("estimating: pairs", str(self.pairs), ">= 0")


def profiled(truth: ThroughputTable, how: Estimating) -> Estimator:
    """Estimator before the first round: reference jobs and a few measured pairs.

    Arguments:
        truth: true throughputs, the source of the measurements.

    Raises:
        InputError: no two kinds of the table share workers.
    """
    sharing = np.flatnonzero((truth.beside > 0).any(axis=(1, 2)))
    drawn = np.random.default_rng(how.seed).permutation(sharing)
    new = sorted(drawn[how.references :].tolist())
    old = [row for row in range(len(truth.kinds)) if row not in set(new)]
    kinds = tuple(truth.kinds[row] for row in old)
    known = replace(truth, kinds=kinds, alone=truth.alone[old], beside=truth.beside[np.ix_(old, old)])
    found = Estimator.of(known, how.seed)
    for row in new:
        found = found.with_kind(truth.kinds[row], truth.alone[row])
    measured = []
    for row in new:
        for kind, place in found.to_measure(truth.kinds[row], how.pairs):
            beside, column = truth.row[kind], truth.column[place]
            steps = truth.beside[row, beside, column], truth.beside[beside, row, column]
            measured.append(PairMeasurement(truth.kinds[row], kind, place, *map(float, steps)))
    return found.with_measured(measured)


class Learner:
    """Estimator of a simulation, which learns from the pairs that run.

    Attributes:
        estimator: estimator with all measurements so far.
        known: throughput table with the current estimates; same rows and columns as the true table.
        first: throughput table with the estimates before the first round.
        measured: table rows (the smaller first) and table column of the pairs measured in rounds.
    """

    def __init__(self, truth: ThroughputTable, cluster: ClusterSpec, how: Estimating) -> None:
        self.how, self.truth = how, truth
        self._at = truth.places_of(cluster)
        self.estimator = profiled(truth, how)
        self.known = self.first = self._table()
        self.measured: set[tuple[int, int, int]] = set()

    def learn(self, ran: Iterable[tuple[int, int, int, tuple[float, ...]]]) -> list[SharingMeasured]:
        """Update the estimates with the pairs of a round, and return the changes.

        Arguments:
            ran: for each pair: table rows of the two jobs, cluster column, and steps per second of the two jobs.

        Returns:
            One event for each changed estimate; an empty list without `refine`.
        """
        if not self.how.refine:
            return []
        new = []
        for a, b, column, steps in ran:
            first, second, place = *sorted((a, b)), self._at[column]
            if (first, second, place) not in self.measured:
                self.measured.add((first, second, place))
                kinds, places = self.truth.kinds, self.truth.places
                new.append(PairMeasurement(kinds[a], kinds[b], places[place], *steps))
        if not new:
            return []
        before = self.known.kept
        self.estimator = self.estimator.with_measured(new)
        self.known = self._table()
        kept = self.known.kept
        changed = np.abs(kept - before)[:, :, self._at] > _SAME
        changed |= changed.transpose(1, 0, 2)
        return [
            SharingMeasured(a, b, c, float(kept[a, b, self._at[c]]), float(kept[b, a, self._at[c]]))
            for a, b, c in np.argwhere(changed).tolist()
            if a <= b
        ]

    def error(self, table: ThroughputTable, rows: Iterable[int]) -> float:
        """Mean absolute error of the estimated fractions of throughput.

        Pairs of two reference jobs are known and do not count. The error is 0 if no other pair is left.

        Arguments:
            table: table with the estimates.
            rows: table rows of the jobs to count; all pairs of them are compared.
        """
        chosen = sorted(set(rows))
        new = np.array([self.truth.kinds[row] not in self.estimator.reference.row for row in chosen], dtype=bool)
        at = np.ix_(chosen, chosen, sorted(set(self._at)))
        unknown = np.abs(table.kept[at] - self.truth.kept[at])[new[:, None] | new[None, :]]
        return float(unknown.mean()) if unknown.size else 0.0

    def note(self, rows: Iterable[int]) -> str:
        """Sentence about the estimation error for jobs with these table rows."""
        chosen = sorted(set(rows))
        before, after = self.error(self.first, chosen), self.error(self.known, chosen)
        told = f"the mean error of estimated throughput shares was {before:.3f} before the first round"
        return f"{told}, {after:.3f} at the end: rounds measured {len(self.measured)} pairs"

    def _table(self) -> ThroughputTable:
        found = self.estimator.table
        at = [found.row[kind] for kind in self.truth.kinds]
        return replace(self.truth, beside=found.beside[np.ix_(at, at)])
