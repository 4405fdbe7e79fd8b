"""Fingerprints of jobs in space sharing.

A fingerprint is a vector of three parts: the fraction of its throughput that the job keeps beside each reference job,
the fraction that each reference job keeps beside it, and logarithms of the job's throughputs alone. The reference is
processed once and serves any number of new jobs.
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
        rank: maximum rank of the model in the matrix completion.
        ridge: strength of the regularization in the last round of the matrix completion.
        rounds: number of alternations between row factors and column factors.
        alone_weight: weight of the logarithms of stand-alone throughputs. With 1, a factor of e in throughput counts
            as much as a difference of 1 in a fraction kept.
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
        reference: throughput table of the reference jobs.
        fitting: parameters of the estimates.
        seed: seed of the initial factors of the matrix completion.
    """

    reference: ThroughputTable
    fitting: Fitting
    seed: int

    def __post_init__(self) -> None:
        if not self.sharing:
            raise InputError("estimator: reference", "no jobs that share workers", "pairs to learn from")

    @cached_property
    def sharing(self) -> list[int]:
        """Row indices in `reference` of the kinds that can share workers."""
        return [int(k) for k in np.flatnonzero((self.reference.beside > 0).any(axis=(1, 2)))]

    @cached_property
    def places(self) -> list[int]:
        """Column indices in `reference` of consolidated places where kinds share workers."""
        together = np.array([consolidated for _, consolidated in self.reference.places])
        return [int(c) for c in np.flatnonzero((self.reference.beside > 0).any(axis=(0, 1)) & together)]

    @cached_property
    def copies(self) -> list[tuple[int, int]]:
        """Column indices in `reference`: (spread, consolidated) of each worker type.

        A single-worker job has the same throughputs on both.
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
        """Number of combinations of a reference kind and a place.

        For combination e, entry e of a fingerprint is the fraction of throughput that the job keeps, and entry
        pairs + e is the fraction that the reference job keeps.
        """
        return len(self.sharing) * len(self.places)

    @cached_property
    def completion(self) -> Completion:
        """Low-rank model of the fingerprints of the reference jobs."""
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
            alone: steps per second alone, at each place of the reference.
            kept: measured fractions of stand-alone throughput, by row of the job, row of the job beside it, and
                column of the place.
        """
        at = [(r, c) for r in self.sharing for c in self.places]
        own = [kept.get((row, r, c), np.nan) for r, c in at]
        others = [kept.get((r, row, c), np.nan) for r, c in at]
        return np.concatenate([own, others, self._alone(alone)])

    def complete(self, known: np.ndarray) -> np.ndarray:
        """Complete fingerprint: known values, and estimates for the rest.

        Arguments:
            known: known values; nan elsewhere.
        """
        have = np.isfinite(known)
        return np.where(have, known, self.completion.row(np.where(have, known, 0.0), have))

    def nearest(self, whole: np.ndarray) -> int:
        """Index in `sharing` of the reference job with the nearest fingerprint.

        Arguments:
            whole: complete fingerprint of the new job.
        """
        return int(((self.completion.table - whole) ** 2).sum(1).argmin())

    def estimate(self, whole: np.ndarray) -> np.ndarray:
        """Estimated fractions of throughput that jobs keep while they share workers.

        Arguments:
            whole: complete fingerprint of the new job.

        Returns:
            Fractions of the new job beside each reference job, then of each reference job beside the new job; shape
                (2, reference jobs, places).
        """
        share, most = self.fitting.nearest_share, float(self.reference.kept.max(initial=1.0))
        mixed = share * self.completion.table[self.nearest(whole)] + (1 - share) * whole
        shape = (2, len(self.sharing), len(self.places))
        return np.clip(mixed[: 2 * self.pairs].reshape(shape), 0.0, most)

    def uncertain(self, known: np.ndarray, entry: int) -> float:
        """Total variance of all estimates after measuring one more combination.

        Arguments:
            known: mask of the known entries of the fingerprint.
            entry: combination to measure, from 0 to `pairs` - 1.
        """
        then = known.copy()
        then[[entry, self.pairs + entry]] = True
        return float(self.completion.variance(then)[: 2 * self.pairs].sum())

    def _alone(self, steps: np.ndarray) -> np.ndarray:
        """Last part of a fingerprint: weighted logarithms of stand-alone throughputs.

        The logarithms of the throughputs at `places` come first, then those of their ratios to the first place. They
        are nan where the job cannot run.

        Arguments:
            steps: steps per second at each place of the reference.
        """
        with np.errstate(divide="ignore"):
            log = np.log(steps[self.places])
        log = np.where(np.isfinite(log), log, np.nan)
        return self.fitting.alone_weight * np.concatenate([log, log[1:] - log[:1]])
