"""Operators: the work of a layer on any device, without seconds.

Rules of this file: an operator is one kernel, or stands for a few consecutive kernels. Matrix multiplications are
described by their sizes, because these decide how well a device is used; all other operators by the bytes that they
read and write. `cost/kernels.py` computes their seconds.
Source: Narayanan's dissertation, section 4.5.1 (a product of m x k and k x n has 2 m n k operations).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

KINDS = ("product", "convolution", "attention", "recurrence", "pass")
"""Kinds of operators, by which estimated and measured times are compared."""


@dataclass(frozen=True, slots=True)
class Product:
    """`batch` independent products of rows x inner and inner x columns matrices.

    Elements have `element_bytes` bytes.

    Attributes:
        kind: one of `KINDS`.
        done: share of the operations that the kernel computes: 0.5 for causal attention. `flops` counts all of them.
        touched_bytes: bytes read and written, if they differ from the bytes of both factors and the result. A
            convolution's factors repeat its input, and attention's scores stay inside the kernel. A negative value
            stands for the bytes of factors and result.
        dtype: compute type; empty for the model's own type.
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
        """Number of multiplications and additions."""
        return 2 * self.rows * self.inner * self.columns * self.batch

    @property
    def moved_bytes(self) -> float:
        """Bytes of device memory that the products read and write together."""
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
    """A pass over memory, such as a normalisation, activation, dropout or copy."""

    moved_bytes: float
    flops: float = 0.0

    @property
    def kind(self) -> str:
        """Kind of the operator, one of `KINDS`."""
        return "pass"


Operator = Product | MemoryPass


def flops_of(operators: Iterable[Operator]) -> float:
    """Return the floating-point operations of matrix products; passes count as 0."""
    return sum(one.flops for one in operators if isinstance(one, Product))
