"""Operators: what a layer asks of a device, without saying how long it takes.

Rules of this file: an operator is one kernel, or one that stands for a few in a row. Matrix multiplications are known by their
sizes, because these decide how well a device is used; all else by the bytes that it reads and writes. `cost/kernels.py` says
what they take.
Source: dissertation section 4.5.1 (a product of m x k and k x n takes 2 m n k operations).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

KINDS = ("product", "convolution", "attention", "recurrence", "pass")
"""What operators are told apart by when they are compared with measured ones."""


@dataclass(frozen=True, slots=True)
class Product:
    """`batch` independent products of rows x inner and inner x columns matrices.

    Elements have `element_bytes` bytes.

    Attributes:
        kind: one of `KINDS`.
        done: part of the operations that the kernel does: half, where attention looks at nothing ahead. All count.
        touched_bytes: read and written, where that is not each factor and the result once: a convolution's factors repeat
            its input, attention's results stay inside. Negative for what the sizes say.
        dtype: type of the numbers as it is computed with; empty for the model's own.
    """

    rows: float
    inner: float
    columns: float
    batch: float = 1
    element_bytes: float = 2
    kind: str = "product"
    done: float = 1.0
    touched_bytes: float = -1.0
    dtype: str = ""

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2 * self.rows * self.inner * self.columns * self.batch

    @property
    def moved_bytes(self) -> float:
        """Read and written."""
        if self.touched_bytes >= 0:
            return self.touched_bytes
        elements = self.rows * self.inner + self.inner * self.columns + self.rows * self.columns
        return elements * self.batch * self.element_bytes

    @property
    def backward(self) -> "tuple[Product, Product]":
        """Products that compute the gradients of the two factors."""
        return (
            replace(self, inner=self.columns, columns=self.inner),
            replace(self, rows=self.inner, inner=self.rows),
        )


@dataclass(frozen=True, slots=True)
class MemoryPass:
    """A pass over memory: normalisations, activations, dropout, additions, softmax, copies."""

    moved_bytes: float
    flops: float = 0.0

    @property
    def kind(self) -> str:
        """Kind of the operator, one of `KINDS`."""
        return "pass"


Operator = Product | MemoryPass


def flops_of(operators: Iterable[Operator]) -> float:
    """Operations of products alone: what the field counts."""
    return sum(one.flops for one in operators if isinstance(one, Product))
