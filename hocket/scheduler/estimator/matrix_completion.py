"""Low-rank matrix completion by alternating ridge-regularized least squares.

Given a table with some known entries, find low-rank row factors U and column factors V with products near the known
entries. With one side fixed, the other is a small linear problem per row (or column). A new row is estimated from its
few known entries with fixed column factors, so a new job costs one small solve.
Source: Narayanan's dissertation, section 5.6 (matrix completion, after Quasar).
"""

from dataclasses import dataclass

import numpy as np

from hocket.errors import InputError

_FIRST_RIDGE = 1.0


@dataclass(frozen=True, eq=False)
class Completion:
    """Low-rank model of a table.

    Attributes:
        mean: mean of each column.
        loadings: column factors V, scaled so that the row factors U have unit variance and no correlation; shape
            (rank, columns).
        ridge: variance not explained by the factors; it limits the influence of few entries.
        table: completed table.
    """

    mean: np.ndarray
    loadings: np.ndarray
    ridge: float
    table: np.ndarray

    def row(self, values: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Estimate a row from its known entries; the mean if there are none.

        Arguments:
            values: values of the row; only values of known entries are used.
            known: mask of the known entries.

        Returns:
            Shape (columns,).
        """
        own = self.loadings[:, known]
        factors = np.linalg.solve(own @ own.T + self._ridge, own @ (values - self.mean)[known])
        return self.mean + factors @ self.loadings

    def variance(self, known: np.ndarray) -> np.ndarray:
        """Posterior variance of each entry of a row, without the variance `ridge`.

        Arguments:
            known: mask of the known entries.

        Returns:
            Shape (columns,).
        """
        own = self.loadings[:, known]
        spread = np.linalg.solve(own @ own.T / self.ridge + np.eye(len(own)), self.loadings)
        return (self.loadings * spread).sum(0)

    @property
    def _ridge(self) -> np.ndarray:
        return self.ridge * np.eye(len(self.loadings))


def complete(
    table: np.ndarray, known: np.ndarray, rank: int, ridge: float, rounds: int, rng: np.random.Generator
) -> Completion:
    """Fit a low-rank model to the known entries of a table, and complete the table.

    Arguments:
        table: rows of similar objects; unknown entries are ignored.
        known: mask of the known entries, same shape.
        rank: maximum rank of the model.
        ridge: strength of the regularization in the last round.
        rounds: number of alternations between row factors and column factors.
        rng: generator of the initial column factors.

    Raises:
        InputError: an empty table, a mask of another shape, or a rank, ridge or number of rounds that is not above 0.
    """
    if table.ndim != 2 or table.shape != known.shape or not table.size:
        raise InputError(
            "completion: table", f"shapes {table.shape} and {known.shape}", "a table and a mask of the same shape"
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
    # A strong ridge that weakens finds the main factors first; from a random start, a weak ridge may end badly.
    for step in np.geomspace(max(ridge, _FIRST_RIDGE), ridge, rounds):
        rows = _half(centred, mask, columns, step)
        columns = _half(centred.T, mask.T, rows, step)
    found = mean + rows @ columns.T
    # Rotated and scaled to row factors of unit variance, so that the ridge is a fair prior.
    values, axes = np.linalg.eigh(rows.T @ rows / max(len(rows) - 1, 1))
    loadings = (columns @ axes * np.sqrt(np.maximum(values, 0.0))).T
    return Completion(mean, loadings, ridge, np.where(known, table, found))


def _half(centred: np.ndarray, mask: np.ndarray, other: np.ndarray, ridge: float) -> np.ndarray:
    """Ridge-regularized least-squares factors of each row.

    Arguments:
        other: factors of the columns, which stay fixed; shape (columns, rank).
    """
    rank = other.shape[1]
    grams = np.einsum("ic,cr,cs->irs", mask, other, other, optimize=True) + ridge * np.eye(rank)
    return np.linalg.solve(grams, (centred @ other)[..., None])[..., 0]
