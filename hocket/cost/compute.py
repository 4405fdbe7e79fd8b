"""Seconds of a stage: sums over its layers, and when its gradients are ready.

Rules of this file: figures are those of the profiled device type. `model.py` scales them to another.
Source: Narayanan's dissertation, section 2.4.1 (T_l summed over the layers of a stage).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hocket.errors import InputError
from hocket.hardware import catalog
from hocket.hardware.cluster import Cluster
from hocket.profiling.layer import Layer
from hocket.profiling.profile import ModelProfile


@dataclass(frozen=True)
class LayerFigures:
    """Figures of all layers for one number of samples.

    Arrays have shape (layers,), `tensor_bytes` has shape (tensors,). `load_s` is for a whole microbatch.
    """

    forward_s: np.ndarray
    backward_s: np.ndarray
    stash_bytes: np.ndarray
    working_bytes: np.ndarray
    backward_bytes: np.ndarray
    fresh_bytes: np.ndarray
    tensor_bytes: np.ndarray
    load_s: float


class Columns:
    """Interpolated figures of a profile, cached by number of samples.

    Plans of one profile should share one object.
    """

    def __init__(self, profile: ModelProfile) -> None:
        self.profile = profile
        self._at: dict[int, LayerFigures] = {}
        self._on: dict[str, Columns] = {}

    def on(self, device_type: str) -> "Columns | None":
        """Figures on a device type; None if the profile has no seconds for it."""
        if device_type == self.profile.device_type:
            return self
        if device_type not in self._on:
            if device_type not in self.profile.elsewhere:
                return None
            self._on[device_type] = Columns(self.profile.on(device_type))
        return self._on[device_type]

    def at(self, samples: int) -> LayerFigures:
        """Figures of all layers for one microbatch of `samples` samples."""
        found = self._at.get(samples)
        if found is None:
            found = LayerFigures(
                forward_s=self.profile.column("forward_s", samples),
                backward_s=self.profile.column("backward_s", samples),
                stash_bytes=self.profile.column("stash_bytes", samples),
                working_bytes=self.profile.column("working_bytes", samples),
                backward_bytes=self.profile.column("backward_bytes", samples),
                fresh_bytes=self.profile.column("fresh_bytes", samples),
                tensor_bytes=self.profile.tensor_bytes(samples),
                load_s=self.profile.loading_s(samples),
            )
            self._at[samples] = found
        return found

    @cached_property
    def parameters(self) -> dict[str, tuple[float, float, float]]:
        """Bytes of weights, gradients and optimizer state of every parameter.

        A profile knows these by layer. A parameter that is alone in a layer is exact. Otherwise, the rest of a layer is
        divided evenly among its other parameters, which only matters if some of them are tied.
        """
        sizes: dict[str, tuple[float, float, float]] = {}
        for layer in sorted(self.profile.layers, key=lambda layer: len(layer.parameters)):
            unknown = [name for name in layer.parameters if name not in sizes]
            if not unknown:
                continue
            known = [sizes[name] for name in layer.parameters if name in sizes]
            whole = (layer.weights_bytes, layer.gradients_bytes, layer.optimizer_bytes)
            rest = [max(0.0, total - sum(size[k] for size in known)) / len(unknown) for k, total in enumerate(whole)]
            sizes.update(dict.fromkeys(unknown, (rest[0], rest[1], rest[2])))
        return sizes


def step_s(profile: ModelProfile, layers: Iterable[int], copies: bool = False, share: float = 1.0) -> float:
    """Seconds of the optimizer step of one stage's layers.

    Shared parameters count once.

    Arguments:
        copies: True if the weights before the step are kept.
        share: share of the weights that is stepped.
    """
    own = _once_each(profile, layers)
    trains = any(layer.gradients_bytes > 0 for layer in own)
    total = share * sum(layer.step_s + (layer.copy_s if copies else 0.0) for layer in own)
    return total + (profile.step_call_s if trains else 0.0)


def copy_s(profile: ModelProfile, layers: Iterable[int]) -> float:
    """Seconds to copy the weights of some layers of one stage, or as many gradients."""
    return sum(layer.copy_s for layer in _once_each(profile, layers))


def _once_each(profile: ModelProfile, layers: Iterable[int]) -> list[Layer]:
    """Layers, without layers that only have parameters of earlier ones."""
    seen: set[str] = set()
    found = []
    for layer in (profile.layers[i] for i in layers):
        if not (layer.parameters and seen.issuperset(layer.parameters)):
            found.append(layer)
            seen.update(layer.parameters)
    return found


def ready_fractions(
    backward_s: np.ndarray, layers: Sequence[int], groups: Sequence[Sequence[int]]
) -> tuple[float, ...]:
    """Time at which each group of layers has its gradients.

    Arguments:
        backward_s: seconds of every layer of the profile.
        layers: the stage's layers, ascending. The backward visits them from the last to the first.
        groups: for each bucket, the layers with gradients in it.

    Returns:
        Fractions of the stage's backward. They never decrease, because buckets appear in the order of their numbers
            (hocket/program/order.py, rule 2).
    """
    seconds = backward_s[list(layers)]
    total = float(seconds.sum())
    if total <= 0:
        return (1.0,) * len(groups)
    behind = np.cumsum(seconds[::-1])[::-1] / total  # fraction of the backward at the end of each layer
    position = {layer: k for k, layer in enumerate(layers)}
    found, latest = [], 0.0
    for group in groups:
        at = float(behind[min(position[layer] for layer in group)]) if group else latest
        latest = max(latest, min(1.0, at))
        found.append(latest)
    return tuple(found)


def least_factor(profile: ModelProfile, other: ModelProfile) -> float:
    """Smallest factor on a layer's seconds, from the profiled device type to another.

    Arguments:
        profile: profile with the profiled seconds.
        other: the same profile with seconds on the other device type.
    """
    names = ("forward_s", "backward_s", "step_s", "copy_s")
    pairs = [(np.ravel([getattr(layer, name) for layer in one.layers]) for one in (profile, other)) for name in names]
    quotients = [there / here for own in pairs for here, there in zip(*own, strict=True) if here > 0]
    return float(min(quotients, default=1.0))


def type_factor(profile: ModelProfile, cluster: Cluster, name: str) -> float:
    """Factor on profiled seconds for a device type that the profile does not contain.

    Raises:
        InputError: as `flops_factor`.
    """
    described = {kind.name: kind.flops_per_s for kind in cluster.types}

    def rates_of(kind: str) -> dict[str, float] | None:
        known = described.get(kind)
        return known or (catalog.device_type(kind).flops_per_s if kind in catalog.names() else None)

    return flops_factor(profile.device_type, rates_of(profile.device_type), rates_of(name), profile.dtype)


def flops_factor(profile_type: str, rates: dict[str, float] | None, own: dict[str, float] | None, dtype: str) -> float:
    """Factor on profiled seconds for another device type: the ratio of peak rates.

    Arguments:
        rates: flops_per_s of the profiled type, by data type; None if the type is not described.
        own: flops_per_s of the other type.

    Raises:
        InputError: a type, or its rate for `dtype`, is unknown.
    """
    if not rates or not own or dtype not in rates or dtype not in own:
        raise InputError(
            "device type",
            f"a profile measured on {profile_type!r}, and no {dtype} rate to convert it",
            f"device types with known {dtype} rates",
            "Measure the profile on the cluster's own device type, or describe both types under `types`.",
        )
    return rates[dtype] / own[dtype]
