"""Low-rank matrix completion by alternating least squares, with a ridge; and what it says of a row that is new.

Of a table of which some entries are known, find row factors U and column factors V of low rank whose products are near the known
entries: each half, with the other fixed, is a small linear problem a row (or a column). A new row is estimated from its few
known entries by the column factors alone, so that a new job costs one small solve.
Source: section 5.6 (matrix completion, after Quasar).
"""

from dataclasses import dataclass

import numpy as np

from hocket.errors import InputError

_FIRST_RIDGE = 1.0


@dataclass(frozen=True, eq=False)
class Completion:
    """What rows of a table have in common.

    Attributes:
        mean: of each column. loadings: how the columns go together, for a row whose factors are spread as those of the table
            are (with variance 1, uncorrelated); shape (rank, columns).
        ridge: variance of what factors do not explain; it keeps a few entries from saying too much.
        table: completed.
    """

    mean: np.ndarray
    loadings: np.ndarray
    ridge: float
    table: np.ndarray

    def row(self, values: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Estimate a whole row from its known entries; shape (columns,). None known: the mean."""
        own = self.loadings[:, known]
        factors = np.linalg.solve(own @ own.T + self._ridge, own @ (values - self.mean)[known])
        return self.mean + factors @ self.loadings

    def variance(self, known: np.ndarray) -> np.ndarray:
        """How uncertain each entry of such a row is, up to the ridge itself; shape (columns,)."""
        own = self.loadings[:, known]
        spread = np.linalg.solve(own @ own.T / self.ridge + np.eye(len(own)), self.loadings)
        return (self.loadings * spread).sum(0)

    @property
    def _ridge(self) -> np.ndarray:
        return self.ridge * np.eye(len(self.loadings))


def complete(
    table: np.ndarray, known: np.ndarray, rank: int, ridge: float, rounds: int, rng: np.random.Generator
) -> Completion:
    """Complete a table.

    Arguments:
        table: rows of alike things; entries that are not known are not looked at. known: which are; same shape.
        rng: for the first column factors.

    Raises:
        InputError: no rows, no rank, or no ridge.
    """
    if table.ndim != 2 or table.shape != known.shape or not table.size:
        raise InputError(
            "completion: table", f"shapes {table.shape} and {known.shape}", "a table and what is known of it"
        )
    if rank < 1 or rounds < 1 or not ridge > 0:
        raise InputError("completion", f"rank {rank}, {rounds} rounds, ridge {ridge}", "each above 0")
    count = known.sum(0)
    overall = table[known].mean() if known.any() else 0.0
    mean = np.where(count > 0, np.where(known, table, 0.0).sum(0) / np.maximum(count, 1), overall)
    centred = np.where(known, table - mean, 0.0)
    rank = min(rank, *table.shape)
    columns = rng.normal(size=(table.shape[1], rank))
    mask = known.astype(float)
    # A strong ridge that weakens finds the factors that matter first: from a random start a weak one may end in a bad corner.
    for step in np.geomspace(max(ridge, _FIRST_RIDGE), ridge, rounds):
        rows = _half(centred, mask, columns, step)
        columns = _half(centred.T, mask.T, rows, step)
    found = mean + rows @ columns.T
    # Turned and stretched so that the factors of the table's rows have unit variance: the ridge is then a fair prior.
    values, axes = np.linalg.eigh(rows.T @ rows / max(len(rows) - 1, 1))
    loadings = (columns @ axes * np.sqrt(np.maximum(values, 0.0))).T
    return Completion(mean, loadings, ridge, np.where(known, table, found))


def _half(centred: np.ndarray, mask: np.ndarray, other: np.ndarray, ridge: float) -> np.ndarray:
    """The factors of each row that fit its known entries best, the other side's being what they are."""
    rank = other.shape[1]
    grams = np.einsum("ic,cr,cs->irs", mask, other, other, optimize=True) + ridge * np.eye(rank)
    return np.linalg.solve(grams, (centred @ other)[..., None])[..., 0]
