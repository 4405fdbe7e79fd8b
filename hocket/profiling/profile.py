"""ModelProfile: what one job costs on one device type, layer by layer and microbatch size by microbatch size.

Rules of this file: layers stand in a topological order (the order in which the model executed them), every tensor
goes forward in that order, and nothing here knows how a profile was made.
Source: section 2.4.1 of the dissertation (T_l, a_l, w_l), with memory, noise and the graph added.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hocket.errors import InputError
from hocket.profiling.capture.compiled_costs import Compiled
from hocket.profiling.layer import MOST, Layer, OtherDeviceLayer, Tensor, check_amounts
from hocket.util.documents import parse_json, seems, seems_instead
from hocket.util.files import digest, read_bytes, write_atomic
from hocket.util.schema import as_data, read_as

FORMAT = "hocket-profile-1"
CPU = "cpu-core"
"""The type of device that processors' profiles and workers are of."""
# A note of a profile.
WORKED_OUT = "seconds are worked out from sizes, not measured"


@dataclass(frozen=True)
class Correction:
    """By what a profile's seconds and bytes were multiplied after a run, and the digest that it had before (planning/predict/feedback.py)."""

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
    """A profiled job: frozen, self-checking, the same text in and out.

    Attributes:
        name: what the job is called.
        device_type: name of the device type it was measured on (a file name of the catalogue, or any name).
        microbatch_sizes: ascending numbers of samples.
        layers, tensors: the graph.
        optimizer: name of the optimizer, such as "SGD" or "Adam".
        ties: groups of layer indices that share a parameter.
        source: where the figures come from, for a person.
        whole_forward_s, whole_backward_s: the undivided model's times, when they were measured; the layers' times are
            already scaled to sum up to them.
        whole_forward_std_s, whole_backward_std_s: standard deviations of these times from one microbatch to the next; empty where not
            known, which counts as 0.
        load_s: seconds to make one microbatch of the job's data and to bring it to the device; empty where not known.
        dtype: floating point type of weights and activations.
        step_call_s: seconds of every optimizer step besides its layers'; nothing for a stage without parameters to train.
        step_together: whether the optimizer step needs every layer's temporary memory at once, or one after the other.
        digest_of_model: SHA-256 over the parameters' names and shapes, empty for foreign profiles.
        batch_size: of the job that was measured; 0 where not known.
        tensor: devices of a tensor-parallel group; figures are those of one of them. sequence_parallel: whether they work on slices
            of the sequence, which then are what goes between layers.
        clip_grad_norm: the norm that gradients are clipped to; None when they are not. What it takes to square and to scale them
            is in the seconds of the step.
        loss_weighted: whether losses of microbatches count by `Job.loss_weight`, so that every step waits for the sum of all weights.
        loss_parts: how the loss of a batch differs from the mean of the losses of its parts, in a sentence
            (`hocket.profiling.checks.loss_additivity`); empty where it does not, or was not looked at.
        correction: what a run has taught, which is in the figures already; None where nothing was.
        compiled: what torch.compile makes of it, which is not in the figures; None where that was not measured.
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
    digest_of_model: str = ""
    batch_size: int = 0
    tensor: int = 1
    clip_grad_norm: float | None = None
    loss_weighted: bool = False
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
        if self.clip_grad_norm is not None and not self.clip_grad_norm > 0:
            raise InputError(
                "clip_grad_norm", str(self.clip_grad_norm), "> 0, or nothing where gradients are not clipped"
            )
        if self.batch_size < 0:
            raise InputError("batch_size", str(self.batch_size), ">= 1, or 0 where it is not known")
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
                raise InputError(key, f"{len(found)} values", f"{len(sizes)}, one a microbatch size, or none")
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
            if any(len(row) != len(sizes) for row in (*self.compiled.forward, *self.compiled.backward)):
                raise InputError("compiled", "other numbers of factors", f"{len(sizes)}, one a microbatch size")
        names = [layer.name for layer in self.layers]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError("layers", f"two layers named {twice!r}", "unique names")
        for i, tensor in enumerate(self.tensors):
            tensor.check(f"tensors.{i} ({tensor.name})", sizes, len(self.layers))

    @property
    def worked_out(self) -> bool:
        """Whether seconds are worked out from sizes, and not measured."""
        return WORKED_OUT in self.notes or self.source.startswith("worked out")

    @property
    def needs_norm(self) -> bool:
        """True if every step waits for a sum over all devices.

        The sum is of squared gradients, of loss weights, or of both.
        """
        return self.clip_grad_norm is not None or self.loss_weighted

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """Other device types on which the seconds of all layers are known."""
        return tuple(one.device_type for one in self.layers[0].elsewhere)

    def on(self, device_type: str) -> "ModelProfile":
        """The same job on one of the other types that `elsewhere` lists."""
        at = self.elsewhere.index(device_type)
        layers = []
        for layer in self.layers:
            one = layer.elsewhere[at]
            forward_s, backward_s, step_s, copy_s = one.forward_s, one.backward_s, one.step_s, one.copy_s
            own = replace(layer, forward_s=forward_s, backward_s=backward_s, step_s=step_s, copy_s=copy_s, elsewhere=())
            layers.append(own)
        return replace(self, device_type=device_type, layers=tuple(layers))

    def knowing(self, others: "Sequence[ModelProfile]") -> "ModelProfile":
        """The profile with the seconds of the same job on other device types."""

        def of(one: "ModelProfile", k: int) -> OtherDeviceLayer:
            layer = one.layers[k]
            return OtherDeviceLayer(one.device_type, layer.forward_s, layer.backward_s, layer.step_s, layer.copy_s)

        layers = [replace(layer, elsewhere=tuple(of(one, k) for one in others)) for k, layer in enumerate(self.layers)]
        return replace(self, layers=tuple(layers))

    def compiling(self, layers: Iterable[int]) -> "ModelProfile":
        """The same with these layers compiled; as it is where nobody has measured that."""
        known, found = self.compiled, list(self.layers)
        for k in layers if known is not None else ():
            assert known is not None
            run, layer = known.run_of(k), found[k]
            ways = ((layer.forward_s, known.forward[run]), (layer.backward_s, known.backward[run]))
            forward_s, backward_s = (tuple(s * by for s, by in zip(*way, strict=True)) for way in ways)
            found[k] = replace(layer, forward_s=forward_s, backward_s=backward_s)
        return replace(self, layers=tuple(found))

    def column(self, name: str, microbatch_size: float) -> np.ndarray:
        """One figure of every layer at one microbatch size; shape (layers,), unit by the name's ending.

        Between measured sizes it interpolates linearly; outside it continues the line of the two nearest sizes, and
        never falls below zero. With a single measured size it scales in proportion to the size.
        """
        return self._interpolate(self._table(name), microbatch_size)

    def tensor_bytes(self, microbatch_size: float) -> np.ndarray:
        """Bytes of every tensor at one microbatch size; shape (tensors,)."""
        return self._interpolate(self._tensor_table, microbatch_size)

    def loading_s(self, microbatch_size: float) -> float:
        """Seconds to load one microbatch of any size; zero where that was not measured."""
        if not self.load_s:
            return 0.0
        return float(self._interpolate(np.array([self.load_s], dtype=float), microbatch_size)[0])

    def deviation_s(self, microbatch_size: float) -> tuple[float, float]:
        """Standard deviation of the undivided model's forward and backward at any size; 0 where not known. Variances are interpolated."""
        given = (self.whole_forward_std_s, self.whole_backward_std_s)
        table = np.square([known or (0.0,) * len(self.microbatch_sizes) for known in given])
        forward, backward = np.sqrt(self._interpolate(table, microbatch_size)).tolist()
        return forward, backward

    def _table(self, name: str) -> np.ndarray:
        """One figure of every layer at every measured size; planners ask for the same ones again and again."""
        if name not in self._tables:
            nothing = (0.0,) * len(self.microbatch_sizes)
            rows = [getattr(layer, name) or nothing for layer in self.layers]
            self._tables[name] = np.array(rows, dtype=float).reshape(len(rows), len(nothing))
        return self._tables[name]

    @cached_property
    def _tables(self) -> dict[str, np.ndarray]:
        return {}

    @cached_property
    def _tensor_table(self) -> np.ndarray:
        rows = [tensor.size_bytes for tensor in self.tensors]
        return np.array(rows, dtype=float).reshape(len(rows), len(self.microbatch_sizes))

    def _interpolate(self, table: np.ndarray, size: float) -> np.ndarray:
        sizes = np.array(self.microbatch_sizes, dtype=float)
        if size < 1:
            raise InputError("microbatch_size", str(size), ">= 1")
        if len(sizes) == 1:
            return table[:, 0] * (size / sizes[0])
        k = int(np.clip(np.searchsorted(sizes, size) - 1, 0, len(sizes) - 2))
        share = (size - sizes[k]) / (sizes[k + 1] - sizes[k])
        line: np.ndarray = table[:, k] + share * (table[:, k + 1] - table[:, k])
        # Below the smallest measured size a steep line may cross zero: in proportion to the size is the least it can be.
        floor = table[:, 0] * (size / sizes[0]) if share < 0 else np.zeros(len(table))
        return np.maximum(line, floor)

    @cached_property
    def unique_weights_bytes(self) -> float:
        """Bytes of all parameters, a tied one counted once (bytes split evenly over a layer's parameters' sharing)."""
        return self.weights_bytes(range(len(self.layers)))

    def weights_bytes(self, layers: Any) -> float:
        """Bytes of the parameters of some layers of one stage, a parameter that they share counted once."""
        seen: set[str] = set()
        total = 0.0
        for i in layers:
            layer = self.layers[i]
            if layer.parameters and seen.issuperset(layer.parameters):
                continue
            total += layer.weights_bytes
            seen.update(layer.parameters)
        return total

    def to_json(self) -> str:
        """The profile as text; `from_json` is the inverse."""
        return json.dumps(self._data(), indent=1)

    def _data(self) -> dict[str, Any]:
        """Plain data; nothing of other device types, of clipping or slices where there is none, as before these were known."""
        data: dict[str, Any] = as_data(self)
        for name in ("sequence_parallel", "loss_weighted", "loss_parts", "whole_forward_std_s", "whole_backward_std_s"):
            if not data[name]:
                del data[name]
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
        for name in ("clip_grad_norm", "correction", "compiled"):
            if data[name] is None:
                del data[name]
        return data

    @classmethod
    def from_json(cls, text: bytes | str, place: str = "profile") -> "ModelProfile":
        """Read a profile strictly.

        Raises:
            InputError: it is no profile at all, or a wrong one.
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
        """SHA-256 of all that it says: the profile's identity in a plan, the same before and after it was saved."""
        return digest(json.dumps(_floats(self._data())).encode())

    def save(self, path: str | Path) -> None:
        """Write the text form whole or not at all."""
        write_atomic(path, self.to_json())

    @classmethod
    def read(cls, path: str | Path) -> "ModelProfile":
        """Read a profile from a file (JSON, or JSON packed with gzip)."""
        return cls.from_json(read_bytes(path), str(path))


def _floats(data: Any) -> Any:
    """Plain data with all numbers as floating point: what is 0 where it was made is 0.0 where it was read."""
    if isinstance(data, dict):
        return {key: _floats(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_floats(value) for value in data]
    return float(data) if isinstance(data, int) and not isinstance(data, bool) else data
