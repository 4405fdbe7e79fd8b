"""Checksums of samples, to compare two reads of a sample.

Rules of this file: integers are compared exactly, all of them. Floating-point values are compared up to rounding,
because rounding differs between kinds of machines; of large items, a part of them.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Sums = dict[str, list[float]]
"""Checksums of one sample, by item.

Each item has an exact integer (types, shape, integers), a weighted sum of its floats, and the tolerance of that sum.
"""
_VALUES = 1024  # number of checked floats of an item with at least twice as many
_TOLERANCE = 1e-5
_MOST = 1e200  # bound on values; their sums stay finite, as JSON requires
_BITS = 2**53 - 1  # JSON readers represent integers of 53 bits exactly


def sums_of(batch: "Mapping[str, Tensor]", rows: int | None = None) -> list[Sums]:
    """Compute the checksums of each sample of a batch, as plain data for JSON.

    The cost is about 50 microseconds per item and batch, and one per KB of integers.

    Arguments:
        batch: tensors by item name.
        rows: number of leading samples to include; by default all.
    """
    columns = {name: _column(name, tensor[:rows]) for name, tensor in batch.items()}
    count = min((len(column) for column in columns.values()), default=0)
    return [{name: column[k] for name, column in columns.items()} for k in range(count)]


def difference(one: Sums, other: Sums) -> str:
    """Return the first item in which two reads of a sample differ; empty if equal."""
    for name in dict.fromkeys((*one, *other)):
        a, b = one.get(name), other.get(name)
        if a is None or b is None or a[0] != b[0] or abs(a[1] - b[1]) > max(a[2], b[2]):
            return name
    return ""


def _column(name: str, tensor: "Tensor") -> list[list[float]]:
    import torch

    kind = crc32(f"{name} {tensor.dtype} {tuple(tensor.shape[1:])}".encode())
    tensor = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    flat = (tensor if tensor.layout == torch.strided else tensor.to_dense()).reshape(len(tensor), -1)
    # Uses numpy, because a worker that counts tensor memory intercepts torch operations.
    if not flat.is_floating_point():
        return [[kind ^ crc32(row.tobytes()), 0.0, 0.0] for row in flat.cpu().numpy()]
    if flat.shape[1] >= 2 * _VALUES:
        flat = flat[:, torch.from_numpy(_positions(flat.shape[1])).to(flat.device)]
    flat = flat.cpu()
    short = flat.dtype not in (torch.float16, torch.float32, torch.float64)  # numpy has no bfloat16
    values, weights = (flat.float() if short else flat).numpy().astype(np.float64), _weights(flat.shape[1])
    finite = np.isfinite(values)
    odd = (~finite).astype(np.int64) @ _integers(flat.shape[1])
    values = np.where(finite, values, 0.0).clip(-_MOST, _MOST)
    tolerance = max(_TOLERANCE, torch.finfo(flat.dtype).eps)
    slack = np.abs(values) @ np.abs(weights) * tolerance
    sums = zip(odd.tolist(), (values @ weights).tolist(), slack.tolist(), strict=True)
    return [[(kind ^ value) & _BITS, total, most] for value, total, most in sums]


@lru_cache(maxsize=32)
def _positions(count: int) -> np.ndarray:
    """Choose a random position in each of many equal ranges.

    A fixed distance would miss values that differ in every second position, or in one column of a matrix.
    """
    within = np.random.default_rng(0).random(_VALUES)
    return ((np.arange(_VALUES) + within) * (count / _VALUES)).astype(np.int64).clip(max=count - 1)


@lru_cache(maxsize=32)
def _weights(count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(count)


@lru_cache(maxsize=32)
def _integers(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 2**62, count) | 1
