"""Seconds of operators on a device type.

Rules of this file:

- The result of a matrix product is cut into tiles, which the device's units (streaming multiprocessors) compute in
  waves. The last wave is rarely full.
- Each tile has a fixed cost at its start and end, which weighs more for a short inner dimension.
- If there are fewer tiles than units, the inner dimension is cut as well, and each part has this cost (split-K). An
  example is the gradient of a convolution's weights: a small result of a very long sum.
- A depthwise convolution, or one with few channels in a group, uses no tiles.
- A product never costs less than moving its operands, and no operator costs less than its launch.
"""

from collections.abc import Iterable
from math import ceil

from hocket.errors import InputError
from hocket.hardware.device_type import DeviceType
from hocket.hardware.kernels import Kernels
from hocket.profiling.analytic.operators import Operator, Product

_PLAIN = {"tfloat32": "float32"}  # data type with the rate to use if a device has none for the first
_SMALL = 24.0  # number of rows or columns of a tile that takes as long to read its operands as to compute
_FEW = 8  # convolutions with fewer channels in a group have kernels without tiles


def seconds(operators: Iterable[Operator], device: DeviceType, dtype: str) -> float:
    """Seconds of operators that run one after the other.

    Arguments:
        dtype: data type of matrix products without one.

    Raises:
        InputError: the device type has no rate for a data type.
    """
    check_rate(device, dtype)
    return sum(operator_s(one, device, dtype) for one in operators)


def operator_s(one: Operator, device: DeviceType, dtype: str) -> float:
    """Seconds of a single operator.

    Arguments:
        dtype: data type of a matrix product without one.

    Raises:
        InputError: the device type has no rate for the data type.
    """
    took_s = moving_s(one.moved_bytes, device)
    if isinstance(one, Product):
        peak = _rate(device, one.dtype or dtype)
        took_s = max(took_s, one.done * one.flops / (peak * share(one, device.kernels)))
    return max(took_s, device.launch_s)


def check_rate(device: DeviceType, dtype: str) -> None:
    """Refuse a data type for which a device type has no peak rate.

    Raises:
        InputError: there is no rate.
    """
    _rate(device, dtype)


def _rate(device: DeviceType, dtype: str) -> float:
    rates = device.flops_per_s
    peak = rates.get(dtype) or rates.get(_PLAIN.get(dtype, ""))
    if peak is None:
        raise InputError(f"device {device.name}: dtype", repr(dtype), f"one of {', '.join(rates)}")
    return peak


def moving_s(moved_bytes: float, device: DeviceType) -> float:
    """Seconds to move bytes between a device and its memory.

    Arguments:
        moved_bytes: bytes read and written together.
    """
    return moved_bytes / (device.memory_bandwidth_bytes_per_s * device.kernels.memory_share)


def share(one: Product, kernels: Kernels) -> float:
    """Share of the peak rate that a matrix product reaches if memory is fast enough."""
    if one.kind == "convolution" and one.batch > 1 and min(one.rows, one.inner, one.columns) < _FEW:
        return kernels.product_share
    best = 0.0
    for rows, columns in kernels.tiles:
        tiles = ceil(one.rows / rows) * ceil(one.columns / columns) * one.batch
        paid = 1 + _SMALL * (1 / rows + 1 / columns)
        parts = 1
        while parts == 1 or (tiles * parts <= kernels.units and parts <= one.inner):
            waves = ceil(tiles * parts / kernels.units)
            filled = one.rows * one.columns * one.batch * parts / (waves * kernels.units * rows * columns)
            best = max(best, filled / paid * one.inner / (one.inner + parts * kernels.inner))
            parts *= 2
    return kernels.product_share * best
