"""Fingerprints of jobs in space sharing.

A fingerprint is one row: the shares of throughput kept beside every reference job, the shares that they keep, and the
throughputs alone. The reference is processed once and serves any number of new jobs.
Source: Narayanan's dissertation, section 5.6 and Figure 5.8.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hocket.errors import InputError
from hocket.scheduler.estimator.matrix_completion import Completion, complete
from hocket.scheduler.model.throughputs import ThroughputTable


@dataclass(frozen=True)
class Fitting:
    """Parameters of the estimates, tuned on the public table.

    The tuning is in bench/bench_estimator.py.

    Attributes:
        rank, ridge, rounds: parameters of the matrix completion.
        alone_weight: weight of a factor of e in throughput alone, relative to a share of throughput of 1.
        nearest_share: weight of the nearest reference job in an estimate; 1 as in the dissertation; 0 for the
            completion alone.
    """

    rank: int = 12
    ridge: float = 0.01
    rounds: int = 20
    alone_weight: float = 0.1
    nearest_share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.nearest_share <= 1:
            raise InputError("fitting: nearest_share", str(self.nearest_share), "0 to 1")
        if not 0 <= self.alone_weight < float("inf"):
            raise InputError("fitting: alone_weight", str(self.alone_weight), "a number >= 0")


@dataclass(frozen=True, eq=False)
class Fingerprints:
    """Fingerprints of the reference jobs that share workers.

    Attributes:
        seed: seed of the initial factors of the completion.
    """

    reference: ThroughputTable
    fitting: Fitting
    seed: int

    def __post_init__(self) -> None:
        if not self.sharing:
            raise InputError("estimator: reference", "no jobs that share workers", "pairs to learn from")

    @cached_property
    def sharing(self) -> list[int]:
        """Rows of the reference kinds that share workers with any kind."""
        return [int(k) for k in np.flatnonzero((self.reference.beside > 0).any(axis=(1, 2)))]

    @cached_property
    def places(self) -> list[int]:
        """Consolidated columns of the reference at which any kinds share workers."""
        together = np.array([consolidated for _, consolidated in self.reference.places])
        return [int(c) for c in np.flatnonzero((self.reference.beside > 0).any(axis=(0, 1)) & together)]

    @cached_property
    def copies(self) -> list[tuple[int, int]]:
        """Pairs of a spread column and the consolidated column of the same type.

        A single-worker job has the same values on both.
        """
        column = self.reference.column
        return [
            (c, column[name, True]) for (name, together), c in column.items() if not together and (name, True) in column
        ]

    @cached_property
    def scale_factors(self) -> set[int]:
        """Scale factors of the kinds that share workers."""
        return {self.reference.kinds[k][1] for k in self.sharing}

    @property
    def pairs(self) -> int:
        """Number of reference kinds times places.

        Entries e and pairs + e of a fingerprint are the two shares of one pair.
        """
        return len(self.sharing) * len(self.places)

    @cached_property
    def completion(self) -> Completion:
        """Completion of the reference jobs' own fingerprints."""
        part = self.reference.kept[np.ix_(self.sharing, self.sharing, self.places)]
        others = part.transpose(1, 0, 2)
        alone = np.stack([self._alone(row) for row in self.reference.alone[self.sharing]])
        table = np.concatenate([part.reshape(len(part), -1), others.reshape(len(part), -1), alone], axis=1)
        fit = self.fitting
        return complete(table, np.isfinite(table), fit.rank, fit.ridge, fit.rounds, np.random.default_rng(self.seed))

    def known(self, row: int, alone: np.ndarray, kept: Mapping[tuple[int, int, int], float]) -> np.ndarray:
        """Known part of a new job's fingerprint; nan elsewhere.

        Arguments:
            row: row of the job in `kept`.
            alone: steps per second at each place of the reference.
            kept: measured shares, by (row, row beside it, column).
        """
        at = [(r, c) for r in self.sharing for c in self.places]
        own = [kept.get((row, r, c), np.nan) for r, c in at]
        others = [kept.get((r, row, c), np.nan) for r, c in at]
        return np.concatenate([own, others, self._alone(alone)])

    def complete(self, known: np.ndarray) -> np.ndarray:
        """Complete fingerprint: known values, and estimates for the rest."""
        have = np.isfinite(known)
        return np.where(have, known, self.completion.row(np.where(have, known, 0.0), have))

    def nearest(self, whole: np.ndarray) -> int:
        """Index in `sharing` of the most similar reference job."""
        return int(((self.completion.table - whole) ** 2).sum(1).argmin())

    def estimate(self, whole: np.ndarray) -> np.ndarray:
        """Estimated shares of the new job and of each reference job beside it.

        Returns:
            Shape (2, jobs, places).
        """
        share, most = self.fitting.nearest_share, float(self.reference.kept.max(initial=1.0))
        mixed = share * self.completion.table[self.nearest(whole)] + (1 - share) * whole
        shape = (2, len(self.sharing), len(self.places))
        return np.clip(mixed[: 2 * self.pairs].reshape(shape), 0.0, most)

    def uncertain(self, known: np.ndarray, entry: int) -> float:
        """Remaining uncertainty of all pairs after measuring one more entry."""
        then = known.copy()
        then[[entry, self.pairs + entry]] = True
        return float(self.completion.variance(then)[: 2 * self.pairs].sum())

    def _alone(self, steps: np.ndarray) -> np.ndarray:
        """Weighted logarithms of throughputs alone and of ratios to the first place.

        nan where the job cannot run.
        """
        with np.errstate(divide="ignore"):
            log = np.log(steps[self.places])
        log = np.where(np.isfinite(log), log, np.nan)
        return self.fitting.alone_weight * np.concatenate([log, log[1:] - log[:1]])
