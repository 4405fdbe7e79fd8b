"""Sparse matrix by columns, for extracting subsets of columns."""

import numpy as np


class Matrix:
    """Sparse matrix in compressed-column form (CSC).

    It is built from entries (row, column, value) in any order. Duplicate entries are added.
    """

    def __init__(self, rows: np.ndarray, columns: np.ndarray, values: np.ndarray, count: int) -> None:
        """
        Arguments:
            count: number of columns.
        """
        order = np.lexsort((rows, columns))
        rows, columns, values = rows[order], columns[order], values[order]
        fresh = np.ones(len(rows), dtype=bool)
        fresh[1:] = (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])
        self._starts = np.searchsorted(columns[fresh], np.arange(count + 1))
        self._rows = rows[fresh].astype(np.int32)
        self._values = np.add.reduceat(values, np.flatnonzero(fresh))

    def part(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Submatrix of the given columns, in compressed-column form.

        Returns:
            Start of each column in the next two arrays, followed by their length; row indices; values.
        """
        sizes = self._starts[columns + 1] - self._starts[columns]
        starts = np.append(0, np.cumsum(sizes))
        at = np.repeat(self._starts[columns] - starts[:-1], sizes) + np.arange(starts[-1])
        return starts.astype(np.int32), self._rows[at], self._values[at]
