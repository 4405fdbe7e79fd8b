"""ModelProfile: cost of one job on one device type.

A profile has one row per layer and one column per microbatch size.

Rules of this file:
- Layers are in topological order (the order in which the model executed them).
- Every tensor goes from an earlier layer to a later layer.
- Nothing here depends on how a profile was made.

Source: Narayanan's dissertation, section 2.4.1 (T_l, a_l, w_l), with memory, noise and the graph added.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hocket.errors import InputError
from hocket.profiling.capture.compiled_costs import Compiled
from hocket.profiling.layer import MOST, Layer, LayerFigures, OtherDeviceLayer, Tensor, check_amounts
from hocket.util.compatibility import Feature, check_together
from hocket.util.documents import parse_json, seems, seems_instead
from hocket.util.files import digest, read_bytes, write_atomic
from hocket.util.schema import read_as

FORMAT = "hocket-profile-1"
CPU = "cpu-core"
"""Device type of profiles and workers on CPUs."""


def is_cpu(device_type: str) -> bool:
    """True for a CPU's device type, and for a type that is derived from it.

    The name of a derived type continues after a space, as in "cpu-core x 2" (`hocket what-if --rate 2x`) and "cpu-core
    of device 1" (planning/predict/at_pace.py).
    """
    return device_type.partition(" ")[0] == CPU


_OF_LAYERS = ("forward_s", "backward_s", "stash_bytes", "working_bytes", "backward_bytes", "fresh_bytes")
_BY_SIZE = (*_OF_LAYERS, "flops", "noise_s", "reduced_bytes", "gathered_bytes")
"""Attributes of a layer with a value for each microbatch size."""

# Profile note: the times come from the analytic model.
WORKED_OUT = "seconds are worked out from sizes, not measured"


@dataclass(frozen=True)
class Correction:
    """Correction of a profile by the measurements of a run.

    planning/predict/feedback.py computes corrections.

    Attributes:
        slowdown: factor that all times were multiplied by.
        growth: factor that all memory sizes were multiplied by.
        digest: digest of the profile before the correction.
    """

    slowdown: float = 1.0
    growth: float = 1.0
    digest: str = ""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        for name in ("slowdown", "growth"):
            if not 0 < getattr(self, name) <= MOST:
                raise InputError(f"correction.{name}", str(getattr(self, name)), "a factor above 0")


@dataclass(frozen=True)
class ModelProfile:
    """A profiled job; immutable, validated, and unchanged by a JSON round trip.

    Attributes:
        name: name of the job.
        device_type: name of the measured device type (a file name of the catalogue, or any name).
        microbatch_sizes: measured microbatch sizes in samples, ascending.
        layers, tensors: nodes and edges of the graph.
        optimizer: name of the optimizer, such as "SGD" or "Adam".
        ties: groups of layer indices that share a parameter.
        source: origin of the measurements, as readable text.
        whole_forward_s, whole_backward_s: measured seconds of the undivided model, per microbatch size. If present, the
            times of the layers are already scaled to this sum.
        whole_forward_std_s, whole_backward_std_s: standard deviations of these times between microbatches. Empty if
            unknown, which counts as 0.
        load_s: seconds to load one microbatch and to copy it to the device. Empty if unknown.
        dtype: floating-point type of weights and activations.
        step_call_s: fixed seconds of every optimizer step, in addition to the step times of the layers. A stage without
            trainable parameters does not pay this cost.
        step_together: True if the optimizer step needs the temporary memory of all layers at once; False if it needs
            one layer's at a time.
        elementwise_step: False if the optimizer looks at whole weights (Adafactor): replicas cannot shard its state.
        coupled_step: True if the optimizer's step of a weight depends on the other weights: plans have one stage.
        digest_of_model: SHA-256 over names and shapes of the parameters; empty for imported profiles.
        batch_size: global batch size of the measured job; 0 if unknown.
        tensor: tensor-parallel size. All costs are costs of one rank of the group.
        sequence_parallel: True if the ranks work on slices of the sequence; layers then exchange slices.
        clip_grad_norm: maximum gradient norm over the model; None without clipping by it. The step times include the
            time to compute the norm and to scale the gradients.
        clip_stage_norm: maximum gradient norm over each stage (`Job.clip_grad_norm_over`); None without clipping by it.
            Step times as for `clip_grad_norm`.
        loss_weighted: True if `Job.loss_weight` weights the losses of microbatches. Every step then waits for the sum
            of all weights.
        loss_scaled: True if losses are multiplied by a loss scale (`Job.precision` float16). Every step then waits for
            the norm of all gradients, which tells if they overflow.
        loss_parts: sentence that explains how the loss of a batch differs from the mean of the losses of its parts
            (`hocket.profiling.checks.loss_additivity`). Empty if there is no difference or no check.
        correction: correction by a run, already applied to the costs; None without a correction.
        compiled: effect of torch.compile, not applied to the costs; None if not measured.
        format: name and version of the file format: always "hocket-profile-1".
        notes: remarks that planners act on or users read.
    """

    name: str
    device_type: str
    microbatch_sizes: tuple[int, ...]
    layers: tuple[Layer, ...]
    tensors: tuple[Tensor, ...]
    optimizer: str = "SGD"
    ties: tuple[tuple[int, ...], ...] = ()
    source: str = ""
    whole_forward_s: tuple[float, ...] = ()
    whole_backward_s: tuple[float, ...] = ()
    whole_forward_std_s: tuple[float, ...] = ()
    whole_backward_std_s: tuple[float, ...] = ()
    load_s: tuple[float, ...] = ()
    dtype: str = "float32"
    step_call_s: float = 0.0
    step_together: bool = False
    elementwise_step: bool = True
    coupled_step: bool = False
    digest_of_model: str = ""
    batch_size: int = 0
    tensor: int = 1
    clip_grad_norm: float | None = None
    clip_stage_norm: float | None = None
    loss_weighted: bool = False
    loss_scaled: bool = False
    loss_parts: str = ""
    correction: Correction | None = None
    compiled: Compiled | None = None
    sequence_parallel: bool = False
    format: str = FORMAT
    notes: tuple[str, ...] = field(default=())

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        sizes = self.microbatch_sizes
        if self.format != FORMAT:
            raise InputError("format", repr(self.format), repr(FORMAT), "Measure or import the profile again.")
        if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
            raise InputError("microbatch_sizes", str(sizes), "ascending numbers of samples, each >= 1")
        for key, most in (("clip_grad_norm", self.clip_grad_norm), ("clip_stage_norm", self.clip_stage_norm)):
            if most is not None and not most > 0:
                raise InputError(key, str(most), "> 0, or null without clipping")
        if self.batch_size < 0:
            raise InputError("batch_size", str(self.batch_size), ">= 1, or 0 if unknown")
        if not self.layers:
            raise InputError("layers", "none", "at least one layer")
        for i, layer in enumerate(self.layers):
            layer.check(f"layers.{i}", sizes, self.device_type, self.elsewhere)
        by_size = {
            "load_s": self.load_s,
            "whole_forward_std_s": self.whole_forward_std_s,
            "whole_backward_std_s": self.whole_backward_std_s,
        }
        for key, found in by_size.items():
            if len(found) not in (0, len(sizes)):
                raise InputError(key, f"{len(found)} values", f"{len(sizes)}, one for each microbatch size, or none")
        for key, values in (
            *by_size.items(),
            ("step_call_s", (self.step_call_s,)),
            ("whole_forward_s", self.whole_forward_s),
            ("whole_backward_s", self.whole_backward_s),
        ):
            check_amounts(key, values)
        for i, tie in enumerate(self.ties):
            if any(not 0 <= layer < len(self.layers) for layer in tie):
                raise InputError(f"ties.{i}", str(tie), f"layers from 0 to {len(self.layers) - 1}")
        if self.compiled is not None:
            if self.compiled.ends[-1:] != (len(self.layers),):
                raise InputError("compiled.ends", str(self.compiled.ends), f"all {len(self.layers)} layers")
            odd = [row for row in (*self.compiled.forward, *self.compiled.backward) if len(row) != len(sizes)]
            if odd:
                told = f"{len(odd[0])} factors for a run of layers"
                raise InputError("compiled", told, f"{len(sizes)}, one for each microbatch size")
        names = [layer.name for layer in self.layers]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError("layers", f"two layers named {twice!r}", "unique names")
        for i, tensor in enumerate(self.tensors):
            tensor.check(f"tensors.{i} ({tensor.name})", sizes, len(self.layers))

    @property
    def worked_out(self) -> bool:
        """True if the times come from the analytic model, not from measurements."""
        return WORKED_OUT in self.notes or self.source.startswith("worked out")

    @property
    def needs_norm(self) -> bool:
        """True if every step waits for a sum over all devices.

        The sum is of squared gradients, of loss weights, or of both.
        """
        return self.clip_grad_norm is not None or self.loss_weighted or self.loss_scaled

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """Other device types with known times for all layers."""
        return tuple(one.device_type for one in self.layers[0].elsewhere)

    def check_shard(self, place: str, shard: str) -> None:
        """Refuse sharding among replicas that the job's optimizer does not allow.

        Arguments:
            place: place of the setting, for the error.
            shard: "none", "optimizer" or "full".

        Raises:
            RefusedError: the optimizer looks at whole weights.
        """
        if shard != "none" and not self.elementwise_step:
            check_together(
                place, Feature.WHOLE_STEPS, Feature(f"shard: {shard}"), found=f"{shard}, with {self.optimizer}"
            )

    def check_stages(self, place: str, stages: int) -> None:
        """Refuse several stages if the job's optimizer needs the weights of all of them.

        Arguments:
            place: place of the setting, for the error.
            stages: number of stages.

        Raises:
            RefusedError: the optimizer looks at several weights.
        """
        if stages > 1 and self.coupled_step:
            check_together(place, Feature.STAGES, Feature.COUPLED_STEPS, found=f"{stages}, with {self.optimizer}")

    def on(self, device_type: str) -> "ModelProfile":
        """Return the profile of the job on a device type in `elsewhere`."""
        at = self.elsewhere.index(device_type)
        layers = []
        for layer in self.layers:
            one = layer.elsewhere[at]
            forward_s, backward_s, step_s, copy_s = one.forward_s, one.backward_s, one.step_s, one.copy_s
            own = replace(layer, forward_s=forward_s, backward_s=backward_s, step_s=step_s, copy_s=copy_s, elsewhere=())
            layers.append(own)
        return replace(self, device_type=device_type, layers=tuple(layers))

    def knowing(self, others: "Sequence[ModelProfile]") -> "ModelProfile":
        """Return the profile extended by times of the job on other device types.

        Arguments:
            others: profiles of the job, one per other device type.
        """

        def of(one: "ModelProfile", k: int) -> OtherDeviceLayer:
            layer = one.layers[k]
            return OtherDeviceLayer(one.device_type, layer.forward_s, layer.backward_s, layer.step_s, layer.copy_s)

        layers = [replace(layer, elsewhere=tuple(of(one, k) for one in others)) for k, layer in enumerate(self.layers)]
        return replace(self, layers=tuple(layers))

    def compiling(self, layers: Iterable[int]) -> "ModelProfile":
        """Return the profile with some layers compiled by torch.compile.

        The costs do not change if the effect of torch.compile was not measured.

        Arguments:
            layers: indices of the layers.
        """
        known, found = self.compiled, list(self.layers)
        for k in layers if known is not None else ():
            assert known is not None
            run, layer = known.run_of(k), found[k]
            ways = ((layer.forward_s, known.forward[run]), (layer.backward_s, known.backward[run]))
            forward_s, backward_s = (tuple(s * by for s, by in zip(*way, strict=True)) for way in ways)
            found[k] = replace(layer, forward_s=forward_s, backward_s=backward_s)
        return replace(self, layers=tuple(found))

    def column(self, name: str, microbatch_size: float) -> np.ndarray:
        """Return one cost of every layer at one microbatch size.

        Values are interpolated linearly between measured sizes. Outside the measured range they are extrapolated from
        the two nearest sizes. Above the range they never fall below zero, and below it never below a value in
        proportion to the size. With a single measured size, values are proportional to the size.

        Arguments:
            name: name of a `Layer` attribute.
            microbatch_size: in samples.

        Returns:
            Array of shape (layers,); the suffix of `name` gives the unit.
        """
        return _interpolated(self.microbatch_sizes, self._tables[name], microbatch_size)

    def tensor_bytes(self, microbatch_size: float) -> np.ndarray:
        """Return the bytes of every tensor at one microbatch size; shape (tensors,)."""
        return _interpolated(self.microbatch_sizes, self._tables["size_bytes"], microbatch_size)

    def figures(self, microbatch_size: float) -> LayerFigures:
        """Return the costs of all layers at one microbatch size, interpolated as by `column`."""
        sizes, tables = self.microbatch_sizes, self._tables
        nothing = (0.0,) * len(sizes)
        loads = np.array([self.load_s or nothing], dtype=float)
        squares = np.square([known or nothing for known in (self.whole_forward_std_s, self.whole_backward_std_s)])
        return LayerFigures(
            **{name: _interpolated(sizes, tables[name], microbatch_size) for name in _OF_LAYERS},
            tensor_bytes=_interpolated(sizes, tables["size_bytes"], microbatch_size),
            load_s=float(_interpolated(sizes, loads, microbatch_size)[0]),
            deviation_s=tuple(np.sqrt(_interpolated(sizes, squares, microbatch_size)).tolist()),
        )

    @cached_property
    def _tables(self) -> dict[str, np.ndarray]:
        """Costs of every layer, and sizes of every tensor, at every measured size; shape (layers or tensors, sizes).

        They are cached because planners read them repeatedly.
        """
        nothing = (0.0,) * len(self.microbatch_sizes)
        rows = {name: [getattr(layer, name) or nothing for layer in self.layers] for name in _BY_SIZE}
        rows["size_bytes"] = [tensor.size_bytes for tensor in self.tensors]
        return {name: np.array(own, dtype=float).reshape(len(own), len(nothing)) for name, own in rows.items()}

    @cached_property
    def unique_weights_bytes(self) -> float:
        """Bytes of all parameters; tied parameters count once (see `weights_bytes`)."""
        return self.weights_bytes(range(len(self.layers)))

    def weights_bytes(self, layers: Any) -> float:
        """Return the bytes of the parameters of some layers of one stage.

        A layer adds nothing if earlier layers already hold all of its parameters.

        Arguments:
            layers: indices of the layers, ascending.
        """
        seen: set[str] = set()
        total = 0.0
        for i in layers:
            layer = self.layers[i]
            if layer.parameters and seen.issuperset(layer.parameters):
                continue
            total += layer.weights_bytes
            seen.update(layer.parameters)
        return total

    def to_json(self, indent: int | None = 1) -> str:
        """Serialize the profile to JSON; `from_json` is the inverse.

        Optional fields that are unset are left out, which keeps the text of profiles from before these fields existed.

        Arguments:
            indent: spaces of each level; None for one line.
        """
        data: dict[str, Any] = asdict(self)
        for name in (
            "sequence_parallel",
            "coupled_step",
            "loss_weighted",
            "loss_scaled",
            "loss_parts",
            "whole_forward_std_s",
            "whole_backward_std_s",
        ):
            if not data[name]:
                del data[name]
        if data["elementwise_step"]:
            del data["elementwise_step"]
        for tensor in data["tensors"]:
            if not tensor["own"]:
                del tensor["own"]
            if tensor["gradient_until"] < 0:
                del tensor["gradient_until"]
        for layer in data["layers"]:
            for key in ("elsewhere", "gathered_bytes"):
                if not layer[key]:
                    del layer[key]
            if "gathered_bytes" not in layer:
                del layer["gathers"]
        for name in ("clip_grad_norm", "clip_stage_norm", "correction", "compiled"):
            if data[name] is None:
                del data[name]
        return json.dumps(data, indent=indent)

    @classmethod
    def from_json(cls, text: bytes | str, place: str = "profile") -> "ModelProfile":
        """Parse and validate a profile.

        Raises:
            InputError: the text is not a profile, or the profile is invalid.
        """
        step = "Make one with `hocket profile` or `hocket import`."
        try:
            data = parse_json(text, place)
        except InputError as error:
            instead = seems_instead(text)
            where, found = (place, instead) if instead else (error.place, error.found)
            raise InputError(where, found, f"a profile ({FORMAT}, JSON)", step) from None
        if not isinstance(data, dict) or not ("layers" in data or data.get("format") == FORMAT):
            raise InputError(place, seems(data), f"a profile ({FORMAT})", step)
        return read_as(cls, data, place)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content, the identity of the profile in a plan.

        Saving and reading a profile does not change its digest.
        """
        return digest(json.dumps(_floats(json.loads(self.to_json(indent=None)))).encode())

    def save(self, path: str | Path) -> None:
        """Write the profile to a file atomically, as JSON."""
        write_atomic(path, self.to_json())

    @classmethod
    def read(cls, path: str | Path) -> "ModelProfile":
        """Read a profile from a file (JSON, optionally compressed with gzip)."""
        return cls.from_json(read_bytes(path), str(path))


def _interpolated(microbatch_sizes: tuple[int, ...], table: np.ndarray, size: float) -> np.ndarray:
    """Return the rows of a table at one microbatch size, as `ModelProfile.column` explains.

    Arguments:
        table: values of shape (rows, microbatch sizes).
    """
    sizes = np.array(microbatch_sizes, dtype=float)
    if size < 1:
        raise InputError("microbatch_size", str(size), ">= 1")
    if len(sizes) == 1:
        return table[:, 0] * (size / sizes[0])
    k = int(np.clip(np.searchsorted(sizes, size) - 1, 0, len(sizes) - 2))
    share = (size - sizes[k]) / (sizes[k + 1] - sizes[k])
    line: np.ndarray = table[:, k] + share * (table[:, k + 1] - table[:, k])
    # Below the smallest measured size, a steep line may cross zero. The lower bound is proportional to the size.
    floor = table[:, 0] * (size / sizes[0]) if share < 0 else np.zeros(len(table))
    return np.maximum(line, floor)


def _floats(data: Any) -> Any:
    """Convert all integers of plain data to floats.

    A value that was 0 before saving may be 0.0 after reading.
    """
    if isinstance(data, dict):
        return {key: _floats(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_floats(value) for value in data]
    return float(data) if isinstance(data, int) and not isinstance(data, bool) else data
