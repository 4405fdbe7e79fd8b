"""Estimator: what new jobs and others keep of their throughput when they share workers, from a few measured pairs.

A job that nobody has profiled is measured beside some reference jobs for a moment; low-rank completion turns that, and its
throughputs alone, into a fingerprint: what it keeps beside every reference job, and they beside it. The nearest reference job,
all of whose pairs are known, is the prior. An estimate lies between the two, and is replaced by what rounds measure.
Source: section 5.6 and Figure 5.8. There the nearest reference job is the estimate; half way to the completed fingerprint was
nearer to the held-out truth (bench/bench_estimator.py). Jobs share workers if they have the scale factor of the reference jobs
that share, which is one in all published data.
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
    """Two kinds of jobs that shared workers at a place, and what each did, in steps a second."""

    first: Kind
    second: Kind
    place: Place
    first_steps_per_s: float
    second_steps_per_s: float


@dataclass(frozen=True, eq=False)
class Estimator:
    """Reference jobs, jobs that are new, and what was measured of them; nothing here changes once made.

    Attributes:
        fingerprints: of the reference jobs.
        new: kinds that nobody profiled, with their throughputs alone by place.
        measured: so far; of the same two kinds at one place the mean counts.
    """

    fingerprints: Fingerprints
    new: tuple[tuple[Kind, tuple[float, ...]], ...] = ()
    measured: tuple[PairMeasurement, ...] = ()

    @classmethod
    def of(cls, reference: ThroughputTable, seed: int, fitting: Fitting | None = None) -> "Estimator":
        """Without new jobs yet.

        Arguments:
            reference: kinds that were profiled, alone and beside each other.
            seed: of the completion's first guess.

        Raises:
            InputError: no two of them share workers.
        """
        return cls(Fingerprints(reference, fitting or Fitting(), seed))

    @property
    def reference(self) -> ThroughputTable:
        """The kinds that were profiled."""
        return self.fingerprints.reference

    def with_kind(self, kind: Kind, alone: Iterable[float]) -> "Estimator":
        """Add a kind that is new, with its steps a second alone at each place of the reference; 0 where it does not run.

        Raises:
            InputError: a kind that is known already, or throughputs that are none.
        """
        steps = tuple(float(value) for value in alone)
        place = _show(kind)
        if kind in self._row:
            raise InputError(place, "known already", "a new kind")
        if len(steps) != len(self.reference.places) or not all(isfinite(s) and s >= 0 for s in steps):
            raise InputError(f"{place}: alone", str(steps)[:60], f"{len(self.reference.places)} throughputs >= 0")
        return replace(self, new=(*self.new, (kind, steps)))

    def with_measured(self, measured: Iterable[PairMeasurement]) -> "Estimator":
        """Add what was measured, of new kinds or of others.

        Raises:
            InputError: a kind or a place that is not known, or throughputs that are none.
        """
        added = tuple(measured)
        for one in added:
            place = f"{_show(one.first)} beside {_show(one.second)} at {show_place(one.place)}"
            if one.first not in self._row or one.second not in self._row:
                raise InputError(place, "a kind that is not known", "known ones", "Add it with with_kind first.")
            if one.place not in self.reference.column:
                raise InputError(place, "a place that is not known", "a place of the reference")
            if not all(isfinite(s) and s >= 0 for s in (one.first_steps_per_s, one.second_steps_per_s)):
                found = f"{one.first_steps_per_s} and {one.second_steps_per_s} steps a second"
                raise InputError(place, found, "numbers >= 0")
        return replace(self, measured=self.measured + added)

    @cached_property
    def table(self) -> ThroughputTable:
        """All kinds, with estimates for pairs that nobody measured; its `pairs` are for a Snapshot.

        Raises:
            InputError: through ThroughputTable, never for estimates.
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
        for a in near:  # new beside new: as each of them beside the other's nearest, and the mean of both
            for b in near:
                if kinds[a][1] == kinds[b][1]:
                    kept[a, b] = (kept[a, near[b]] + kept[near[a], b]) / 2
        for (a, b, c), value in self._means.items():
            kept[a, b, c] = value
        share = (kept > 0) & (kept.transpose(1, 0, 2) > 0)
        beside = np.where(share, kept, 0.0) * self._alone[:, None, :]
        beside[beside.transpose(1, 0, 2) <= 0] = 0.0  # one of the two does not run there
        return ThroughputTable(self.reference.places, kinds, self._alone, beside)

    def nearest(self, kind: Kind) -> Kind:
        """The reference job whose fingerprint is most like that of a new kind.

        Raises:
            InputError: a kind that is not new, or one that does not share workers.
        """
        whole = self._whole[self._sharing_row(kind)]
        return self.reference.kinds[self.fingerprints.sharing[self.fingerprints.nearest(whole)]]

    def to_measure(self, kind: Kind, count: int) -> tuple[tuple[Kind, Place], ...]:
        """Reference jobs and places beside which a new kind is best measured next, the most telling first.

        One after the other, the pair that leaves least of the fingerprint uncertain; that depends on what was measured, not on
        what came out.

        Raises:
            InputError: a kind that is not new, or one that does not share workers.
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
            raise InputError(_show(kind), "not a new kind that shares workers", "one added with with_kind")
        return row

    @cached_property
    def _row(self) -> dict[Kind, int]:
        """Of each kind, the new ones behind those of the reference."""
        return {kind: k for k, kind in enumerate((*self.reference.kinds, *(kind for kind, _ in self.new)))}

    @cached_property
    def _alone(self) -> np.ndarray:
        """Steps a second by kind and place."""
        added = np.array([steps for _, steps in self.new]).reshape(len(self.new), len(self.reference.places))
        return np.concatenate([self.reference.alone, added])

    @cached_property
    def _means(self) -> dict[tuple[int, int, int], float]:
        """By (kind, kind beside it, place): the part of its throughput that it kept, on average over measurements."""
        found: dict[tuple[int, int, int], list[float]] = {}
        for one in self.measured:
            a, b, c = self._row[one.first], self._row[one.second], self.reference.column[one.place]
            for k, other, steps in ((a, b, one.first_steps_per_s), (b, a, one.second_steps_per_s)):
                alone = self._alone[k, c]
                found.setdefault((k, other, c), []).append(steps / alone if alone > 0 else 0.0)
        return {key: sum(values) / len(values) for key, values in found.items()}

    @cached_property
    def _known(self) -> dict[int, np.ndarray]:
        """The fingerprint, as far as it is known, of each new kind that shares workers."""
        rows = (self._row[kind] for kind, _ in self.new if kind[1] in self.fingerprints.scale_factors)
        return {row: self.fingerprints.known(row, self._alone[row], self._means) for row in rows}

    @cached_property
    def _whole(self) -> dict[int, np.ndarray]:
        """The same, completed."""
        return {row: self.fingerprints.complete(known) for row, known in self._known.items()}


def _show(kind: Kind) -> str:
    return f"{kind[0]} on {kind[1]}"
