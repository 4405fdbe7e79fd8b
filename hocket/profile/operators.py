"""Operators: what a layer asks of a device, without saying how long it takes.

Rules of this file: an operator is one kernel, or one that stands for a few in a row. Matrix multiplications are known by their
sizes, because these decide how well a device is used; all else by the bytes that it reads and writes. `cost/kernels.py` says
what they take.
Source: dissertation section 4.5.1 (a product of m x k and k x n takes 2 m n k operations).
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Product:
    """`batch` independent products of rows x inner and inner x columns matrices, of elements of `element_bytes`."""

    rows: float
    inner: float
    columns: float
    batch: float = 1
    element_bytes: float = 2

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2 * self.rows * self.inner * self.columns * self.batch

    @property
    def moved_bytes(self) -> float:
        """Read and written once each."""
        elements = self.rows * self.inner + self.inner * self.columns + self.rows * self.columns
        return elements * self.batch * self.element_bytes

    @property
    def backward(self) -> "tuple[Product, Product]":
        """What gives the gradients of the two factors."""
        return (
            Product(self.rows, self.columns, self.inner, self.batch, self.element_bytes),
            Product(self.inner, self.rows, self.columns, self.batch, self.element_bytes),
        )


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass over memory: normalisations, activations, dropout, additions, softmax, copies."""

    moved_bytes: float
    flops: float = 0.0


Operator = Product | Pass


def flops_of(operators: Iterable[Operator]) -> float:
    """Operations of products alone: what the field counts."""
    return sum(one.flops for one in operators if isinstance(one, Product))
