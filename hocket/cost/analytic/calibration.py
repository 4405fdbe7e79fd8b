"""Calibration: measured seconds per estimated second, by kind of operator.

Rules of this file: nothing is measured here. The factors are fitted to one measured profile. A layer's seconds are the
sum over its operators of estimated seconds times the factor of the operator's kind. Factors are non-negative. They are
fitted by least squares over layers and microbatch sizes. The factor of a rare kind is drawn towards the factor of all
kinds together. The method has no outside source.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hocket.cost.kernels import operator_s
from hocket.errors import InputError
from hocket.hardware.device_type import DeviceType
from hocket.profiling.analytic.operators import KINDS, Operator
from hocket.profiling.operators_only import Sketch
from hocket.profiling.profile import ModelProfile
from hocket.util.documents import parse_yaml, write_yaml
from hocket.util.files import read_bytes, write_atomic
from hocket.util.schema import as_data, read_as

FORMAT = "hocket-calibration-1"
LAUNCH = "launch"
"""Kind of all operators so small that the launch determines their seconds."""
_PULL = 0.02  # weight of the regularization towards the factor of all kinds together, relative to all squares
_MOST = 1e6


@dataclass(frozen=True)
class Calibration:
    """Factors of one device type: measured seconds per estimated second.

    Attributes:
        forward, backward: factors by kind of operator (`KINDS`, and "launch"). Kinds that did not occur have the factor
            of all kinds together.
        step: factor of optimizer steps.
        source: the profile that the factors were fitted to, and the error of its estimated total seconds before, as
            readable text.
    """

    device_type: str
    forward: dict[str, float]
    backward: dict[str, float]
    step: float = 1.0
    source: str = ""
    format: str = field(default=FORMAT)

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise InputError("format", repr(self.format), repr(FORMAT))
        for place, factors in (("forward", self.forward), ("backward", self.backward), ("step", {"": self.step})):
            for kind, factor in factors.items():
                if kind not in (*KINDS, LAUNCH, ""):
                    raise InputError(place, repr(kind), f"one of {', '.join((*KINDS, LAUNCH))}")
                if not 0 <= factor <= _MOST:
                    raise InputError(f"{place}.{kind}".rstrip("."), str(factor), f"a factor from 0 to {_MOST:.0e}")

    def check(self, device: DeviceType) -> None:
        """Refuse a device type other than the one that the factors were measured on.

        Raises:
            InputError: `device` is another type.
        """
        if device.name != self.device_type:
            step = f"Calibrate {device.name} with `hocket calibrate`, or leave the calibration out."
            raise InputError("calibration", f"factors of {self.device_type}", f"factors of {device.name}", step)

    def to_yaml(self) -> str:
        """Convert the calibration to text; `from_yaml` is the inverse."""
        return write_yaml(as_data(self))

    @classmethod
    def from_yaml(cls, text: bytes | str, place: str = "calibration") -> "Calibration":
        """Read a calibration from YAML; unknown keys are refused.

        Raises:
            InputError: unknown or missing keys, or wrong values.
        """
        data = parse_yaml(text, place)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            step = "Make one with `hocket calibrate`."
            raise InputError(place, "another document", f"a calibration ({FORMAT}, YAML)", step)
        return read_as(cls, data, place)

    def save(self, path: str | Path) -> None:
        """Write the text form atomically."""
        write_atomic(path, self.to_yaml())

    @classmethod
    def read(cls, path: str | Path) -> "Calibration":
        """Read a calibration file (YAML).

        Raises:
            InputError: there is no such file, or its text is no valid calibration.
        """
        return cls.from_yaml(read_bytes(path, 2**16), str(path))


def calibrated_s(
    operators: Iterable[Operator], device: DeviceType, dtype: str, factors: Mapping[str, float] | None
) -> float:
    """Seconds of operators that run one after the other, each times a factor.

    Arguments:
        dtype: data type of matrix products without one.
        factors: factors by kind of operator; None for 1.
    """
    if factors is None:
        return sum(operator_s(one, device, dtype) for one in operators)
    return sum(factors.get(kind, 1.0) * took_s for kind, took_s in by_kind(operators, device, dtype).items())


def by_kind(operators: Iterable[Operator], device: DeviceType, dtype: str) -> dict[str, float]:
    """Estimated seconds of operators, by kind (`KINDS`, and LAUNCH).

    Arguments:
        dtype: data type of matrix products without one.
    """
    found: dict[str, float] = {}
    for one in operators:
        took_s = operator_s(one, device, dtype)
        kind = LAUNCH if took_s <= device.launch_s else one.kind
        found[kind] = found.get(kind, 0.0) + took_s
    return found


def learned(sketch: Sketch, measured: ModelProfile, device: DeviceType) -> Calibration:
    """Fit calibration factors of a device type to a measured profile.

    Arguments:
        sketch: operators of the same job, for the same microbatch sizes.
        device: the device type of `measured`.

    Raises:
        InputError: model, layers or microbatch sizes of `sketch` and `measured` differ, or `measured` is of another
            device type.
    """
    plain = sketch.profile
    if measured.digest_of_model != plain.digest_of_model:
        raise InputError(
            "calibrate", f"a profile of another model ({measured.name})", f"one of this job ({plain.name})"
        )
    if [x.name for x in measured.layers] != [x.name for x in plain.layers]:
        expected = "a profile measured by this version of hocket"
        raise InputError("calibrate", "a profile with other layers", expected, "Profile the job again.")
    if measured.microbatch_sizes != plain.microbatch_sizes:
        raise InputError("calibrate", f"microbatch sizes {measured.microbatch_sizes}", f"{plain.microbatch_sizes}")
    if measured.device_type != device.name:
        raise InputError("calibrate", f"a profile of {measured.device_type}", f"one of {device.name}")
    sides = {}
    before: list[float] = []
    for side in ("forward", "backward"):
        rows, took = [], []
        for k, at in enumerate(sketch.work):
            for work, layer in zip(at, measured.layers, strict=True):
                rows.append(by_kind(getattr(work, side), device, plain.dtype))
                took.append(getattr(layer, f"{side}_s")[k])
        sides[side] = _fit(rows, took)
        before.append(sum(sum(row.values()) for row in rows) / (sum(took) or 1.0) - 1)
    step_s = sum(layer.step_s for layer in measured.layers) + measured.step_call_s
    worked_out_s = sum(operator_s(one, device, plain.dtype) for one in sketch.step)
    source = (
        f"{measured.name}, microbatches of {', '.join(map(str, measured.microbatch_sizes))}; {measured.source}; worked out "
        f"before: {before[0]:+.1%} forward, {before[1]:+.1%} backward"
    )
    step = step_s / worked_out_s if step_s and worked_out_s else 1.0
    return Calibration(device.name, sides["forward"], sides["backward"], step, source)


def _fit(rows: list[dict[str, float]], took: list[float]) -> dict[str, float]:
    """Fit factors by kind of operator to measured seconds of layers.

    The sum over all rows is exact.

    Arguments:
        rows: estimated seconds by kind, one row for each layer and microbatch size.
        took: measured seconds of each row.
    """
    kinds = sorted({kind for row in rows for kind in row})
    table = np.array([[row.get(kind, 0.0) for kind in kinds] for row in rows], dtype=float)
    target = np.array(took, dtype=float)
    whole = float(target.sum() / table.sum()) if table.sum() > 0 and target.sum() > 0 else 1.0
    # Factors are relative to the mean factor, and pulled towards 1.
    table *= whole
    square = table.T @ table + _PULL * np.eye(len(kinds)) * float((table**2).sum()) / max(len(kinds), 1)
    right = table.T @ target + (square - table.T @ table) @ np.ones(len(kinds))
    factors = np.ones(len(kinds))
    for _ in range(1000):  # coordinate descent, never below 0; it converges because the matrix is positive definite
        for j in range(len(kinds)):
            rest = right[j] - square[j] @ factors + square[j, j] * factors[j]
            factors[j] = max(0.0, rest / square[j, j]) if square[j, j] > 0 else 1.0
    explained = float((table @ factors).sum())
    scale = whole * (float(target.sum()) / explained if explained > 0 else 1.0)
    found = {kind: float(factor * scale) for kind, factor in zip(kinds, factors, strict=True)}
    return {kind: found.get(kind, whole) for kind in (*KINDS, LAUNCH)}
