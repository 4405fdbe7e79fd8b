"""Throughput estimator: throughputs of new jobs that share workers.

Few measurements are needed. A kind of job is a job type and a scale factor. A new kind is measured briefly beside
some reference jobs. Low-rank matrix completion turns these measurements and the throughputs alone into a fingerprint
(fingerprint.py): the fractions of throughput that the new job and each reference job keep while they share workers.
The nearest reference job, for which all pairs are measured, is the prior. An estimate lies between the fingerprint
and the prior. It is replaced by measurements from rounds.
Source: Narayanan's dissertation, section 5.6 and Figure 5.8. There, the estimate is the nearest reference job;
halfway to the completed fingerprint was closer to the held-out truth (bench/bench_estimator.py). New jobs can share
workers if they have a scale factor of the sharing reference jobs, which is 1 in all published data.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from typing import NamedTuple

import numpy as np

from hocket.errors import InputError
from hocket.scheduler.estimator.fingerprint import Fingerprints, Fitting
from hocket.scheduler.model.throughputs import Kind, Place, ThroughputTable, show_place


class PairMeasurement(NamedTuple):
    """Measured steps per second of two kinds of jobs that shared workers.

    A kind is a job type and a scale factor. A place is a worker type, consolidated or spread.
    """

    first: Kind
    second: Kind
    place: Place
    first_steps_per_s: float
    second_steps_per_s: float


@dataclass(frozen=True, eq=False)
class Estimator:
    """Estimator of throughputs in space sharing, with its measurements; immutable.

    Attributes:
        fingerprints: fingerprints of the reference jobs.
        new: kind (job type, scale factor) of each new job, and its steps per second alone at each place.
        measured: measurements so far; repeated measurements of two kinds at one place are averaged.
    """

    fingerprints: Fingerprints
    new: tuple[tuple[Kind, tuple[float, ...]], ...] = ()
    measured: tuple[PairMeasurement, ...] = ()

    @classmethod
    def of(cls, reference: ThroughputTable, seed: int, fitting: Fitting | None = None) -> "Estimator":
        """Estimator without new jobs.

        Arguments:
            reference: throughputs of the reference jobs, alone and in pairs.
            seed: seed of the initial factors of the matrix completion.
            fitting: parameters of the estimates; the defaults of Fitting if None.

        Raises:
            InputError: no two kinds share workers.
        """
        return cls(Fingerprints(reference, fitting or Fitting(), seed))

    @property
    def reference(self) -> ThroughputTable:
        """Throughput table of the reference jobs."""
        return self.fingerprints.reference

    def with_kind(self, kind: Kind, alone: Iterable[float]) -> "Estimator":
        """Estimator with one more kind of job.

        Arguments:
            kind: job type and scale factor.
            alone: steps per second alone at each place of the reference; 0 where the kind cannot run.

        Raises:
            InputError: a kind that the estimator has already, or invalid throughputs.
        """
        steps = tuple(float(value) for value in alone)
        place = _show(kind)
        if kind in self._row:
            found = "a kind of job that the estimator has already"
            raise InputError(place, found, "a job type and scale factor that are not in the estimator yet")
        if len(steps) != len(self.reference.places) or not all(isfinite(s) and s >= 0 for s in steps):
            raise InputError(f"{place}: alone", str(steps)[:60], f"{len(self.reference.places)} throughputs >= 0")
        return replace(self, new=(*self.new, (kind, steps)))

    def with_measured(self, measured: Iterable[PairMeasurement]) -> "Estimator":
        """Estimator with more measurements, of new kinds or reference kinds.

        Raises:
            InputError: an unknown kind or place, or invalid throughputs.
        """
        added = tuple(measured)
        for one in added:
            place = f"{_show(one.first)} beside {_show(one.second)} at {show_place(one.place)}"
            unknown = [kind for kind in (one.first, one.second) if kind not in self._row]
            if unknown:
                found = f"{_show(unknown[0])}, a kind of job that is not in the estimator"
                raise InputError(place, found, "two kinds that are", "Add new kinds with with_kind first.")
            if one.place not in self.reference.column:
                places = ", ".join(map(show_place, self.reference.places))
                found = f"{show_place(one.place)}, which the reference table does not have"
                raise InputError(place, found, f"a place of the table: {places}")
            if not all(isfinite(s) and s >= 0 for s in (one.first_steps_per_s, one.second_steps_per_s)):
                found = f"{one.first_steps_per_s} and {one.second_steps_per_s} steps per second"
                raise InputError(place, found, "two finite throughputs >= 0")
        return replace(self, measured=self.measured + added)

    @cached_property
    def table(self) -> ThroughputTable:
        """Throughput table of all kinds, with estimates for unmeasured pairs.

        Its `pairs` method gives the input of a Snapshot.

        Raises:
            InputError: ThroughputTable rejects values that come from measurements; estimates are always valid.
        """
        prints, known = self.fingerprints, len(self.reference.kinds)
        kinds = tuple(self._row)
        kept = np.zeros((len(kinds), len(kinds), len(self.reference.places)))
        kept[:known, :known] = self.reference.kept
        near = {k: prints.sharing[prints.nearest(whole)] for k, whole in self._whole.items()}
        for k, whole in self._whole.items():
            own, others = prints.estimate(whole)
            kept[np.ix_([k], prints.sharing, prints.places)] = own
            kept[np.ix_(prints.sharing, [k], prints.places)] = others[:, None]
            for copy, place in prints.copies:
                kept[k, :, copy], kept[:, k, copy] = kept[k, :, place], kept[:, k, place]
        for a in near:  # two new kinds: mean of the values of each beside the other's nearest reference
            for b in near:
                if kinds[a][1] == kinds[b][1]:
                    kept[a, b] = (kept[a, near[b]] + kept[near[a], b]) / 2
        for (a, b, c), value in self._means.items():
            kept[a, b, c] = value
        share = (kept > 0) & (kept.transpose(1, 0, 2) > 0)
        beside = np.where(share, kept, 0.0) * self._alone[:, None, :]
        beside[beside.transpose(1, 0, 2) <= 0] = 0.0  # one of the two cannot run there
        return ThroughputTable(self.reference.places, kinds, self._alone, beside)

    def nearest(self, kind: Kind) -> Kind:
        """Reference job with the fingerprint that is nearest to the fingerprint of a new kind.

        Raises:
            InputError: not a new kind, or a kind that does not share workers.
        """
        whole = self._whole[self._sharing_row(kind)]
        return self.reference.kinds[self.fingerprints.sharing[self.fingerprints.nearest(whole)]]

    def to_measure(self, kind: Kind, count: int) -> tuple[tuple[Kind, Place], ...]:
        """Most informative pairs to measure next for a new kind.

        Pairs are chosen greedily: each leaves the least uncertainty in the fingerprint. The choice depends on the
        measured pairs, not on the measured values.

        Arguments:
            count: maximum number of pairs.

        Returns:
            Reference kinds and places, most informative first.

        Raises:
            InputError: not a new kind, or a kind that does not share workers.
        """
        prints = self.fingerprints
        row = self._sharing_row(kind)
        known = np.isfinite(self._known[row])
        at = [(r, c) for r in prints.sharing for c in prints.places]
        left = [e for e, (_, c) in enumerate(at) if self._alone[row, c] > 0 and not known[[e, prints.pairs + e]].all()]
        found: list[tuple[Kind, Place]] = []
        while left and len(found) < count:
            best = min(left, key=lambda entry: (prints.uncertain(known, entry), entry))
            left.remove(best)
            known[[best, prints.pairs + best]] = True
            found.append((self.reference.kinds[at[best][0]], self.reference.places[at[best][1]]))
        return tuple(found)

    def _sharing_row(self, kind: Kind) -> int:
        row = self._row.get(kind, -1)
        if row not in self._whole:
            known = len(self.reference.kinds)
            own = "a kind that is not in the estimator" if row < 0 else "a kind that cannot share workers"
            found = "a reference kind" if 0 <= row < known else own
            raise InputError(_show(kind), found, "a kind that was added with with_kind and can share workers")
        return row

    @cached_property
    def _row(self) -> dict[Kind, int]:
        """Row index in `table` of each kind; new kinds follow the reference kinds."""
        return {kind: k for k, kind in enumerate((*self.reference.kinds, *(kind for kind, _ in self.new)))}

    @cached_property
    def _alone(self) -> np.ndarray:
        """Steps per second alone, by kind and place."""
        added = np.array([steps for _, steps in self.new]).reshape(len(self.new), len(self.reference.places))
        return np.concatenate([self.reference.alone, added])

    @cached_property
    def _means(self) -> dict[tuple[int, int, int], float]:
        """Mean measured fraction of stand-alone throughput of a job in a pair.

        By row of the job, row of the job beside it, and column of the place.
        """
        found: dict[tuple[int, int, int], list[float]] = {}
        for one in self.measured:
            a, b, c = self._row[one.first], self._row[one.second], self.reference.column[one.place]
            for k, other, steps in ((a, b, one.first_steps_per_s), (b, a, one.second_steps_per_s)):
                alone = self._alone[k, c]
                found.setdefault((k, other, c), []).append(steps / alone if alone > 0 else 0.0)
        return {key: sum(values) / len(values) for key, values in found.items()}

    @cached_property
    def _known(self) -> dict[int, np.ndarray]:
        """Fingerprint of each new kind that shares workers, by row; nan where unknown."""
        rows = (self._row[kind] for kind, _ in self.new if kind[1] in self.fingerprints.scale_factors)
        return {row: self.fingerprints.known(row, self._alone[row], self._means) for row in rows}

    @cached_property
    def _whole(self) -> dict[int, np.ndarray]:
        """Completed fingerprint of each new kind that shares workers, by row."""
        return {row: self.fingerprints.complete(known) for row, known in self._known.items()}


def _show(kind: Kind) -> str:
    return f"{kind[0]} on {kind[1]}"
