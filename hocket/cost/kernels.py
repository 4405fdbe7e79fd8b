"""Seconds of operators on a device type.

Rules of this file: a product is cut into tiles, which the device's units take wave after wave. The last wave is rarely full, and
a short inner dimension does not pay for the begin and the end of a tile. Where there are fewer tiles than units, the inner dimension is
cut, too, and each part pays for its begin and end (split-K; the gradient of a convolution's weights is a small result of a very long
sum). A convolution of channels by themselves uses no tiles. A product takes no less than moving its operands, and nothing less than its
launch.
"""

from collections.abc import Iterable
from math import ceil

from hocket.errors import InputError
from hocket.hardware.device_type import DeviceType
from hocket.hardware.kernels import Kernels
from hocket.profiling.analytic.operators import Operator, Product

_PLAIN = {"tfloat32": "float32"}  # what types fall back to where a device has no rate for them
_SMALL = 24.0  # rows or columns of a tile that is held up by reading its operands as long as it takes to compute
_FEW = 8  # channels of a group of a convolution for which there are kernels without tiles


def seconds(operators: Iterable[Operator], device: DeviceType, dtype: str) -> float:
    """Seconds of operators, one after the other.

    Arguments:
        dtype: type of numbers of products that do not say theirs.

    Raises:
        InputError: the device type has no rate for a type of numbers.
    """
    check_rate(device, dtype)
    return sum(operator_s(one, device, dtype) for one in operators)


def operator_s(one: Operator, device: DeviceType, dtype: str) -> float:
    """Seconds of a single operator; see `seconds`."""
    took_s = moving_s(one.moved_bytes, device)
    if isinstance(one, Product):
        peak = _rate(device, one.dtype or dtype)
        took_s = max(took_s, one.done * one.flops / (peak * share(one, device.kernels)))
    return max(took_s, device.launch_s)


def check_rate(device: DeviceType, dtype: str) -> None:
    """Refuse a type of numbers that a device type has no rate for."""
    _rate(device, dtype)


def _rate(device: DeviceType, dtype: str) -> float:
    rates = device.flops_per_s
    peak = rates.get(dtype) or rates.get(_PLAIN.get(dtype, ""))
    if peak is None:
        raise InputError(f"device {device.name}: dtype", repr(dtype), f"one of {', '.join(rates)}")
    return peak


def moving_s(moved_bytes: float, device: DeviceType) -> float:
    """Seconds of reading and writing so many bytes in all."""
    return moved_bytes / (device.memory_bandwidth_bytes_per_s * device.kernels.memory_share)


def share(one: Product, kernels: Kernels) -> float:
    """Part of the peak rate that a product reaches, when its operands are there in time."""
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
