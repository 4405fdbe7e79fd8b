"""Seconds of a stage: sums over its layers, and when its gradients are complete.

Rules of this file: seconds are for a device type that the profile knows. `model.py` scales them to another type.
Source: Narayanan's dissertation, section 2.4.1 (T_l summed over the layers of a stage).
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from hocket.errors import InputError
from hocket.hardware import catalog
from hocket.hardware.cluster import Cluster
from hocket.profiling.layer import Layer, LayerFigures
from hocket.profiling.profile import ModelProfile


class Columns:
    """Costs of a profile's layers, interpolated and cached by microbatch size.

    Plans of one profile should share one object.

    Attributes:
        walks: walks over the layers of stages, which plans with equal stages share (cost/memory/values.py).
    """

    def __init__(self, profile: ModelProfile) -> None:
        self.profile = profile
        self._at: dict[int, LayerFigures] = {}
        self._on: dict[str, Columns] = {}
        self.walks: dict[object, Any] = {}

    def on(self, device_type: str) -> "Columns | None":
        """Costs on a device type; None if the profile has no seconds for this type."""
        if device_type == self.profile.device_type:
            return self
        if device_type not in self._on:
            if device_type not in self.profile.elsewhere:
                return None
            self._on[device_type] = Columns(self.profile.on(device_type))
        return self._on[device_type]

    def at(self, samples: int) -> LayerFigures:
        """Costs of all layers for one microbatch of `samples` samples."""
        found = self._at.get(samples)
        if found is None:
            found = self.profile.figures(samples)
            self._at[samples] = found
        return found

    @cached_property
    def parameters(self) -> dict[str, tuple[float, float, float]]:
        """Bytes of weight, gradient and optimizer state of every parameter, by name.

        A profile knows these bytes by layer. They are exact for the only parameter of a layer. Otherwise the bytes of
        a layer that are not yet assigned are divided evenly among its other parameters. This matters only if some of
        them are tied.
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

    def step_s(self, layers: Iterable[int], copies: bool = False, share: float = 1.0) -> float:
        """Seconds of the optimizer step of one stage's layers.

        Shared parameters count once.

        Arguments:
            layers: the stage's layers, ascending.
            copies: True if the weights before the step are kept, so that the step works on a copy.
            share: share of the weights that the step updates, 0 to 1.
        """
        own = self._once_each(layers)
        trains = any(layer.gradients_bytes > 0 for layer in own)
        total = share * sum(layer.step_s + (layer.copy_s if copies else 0.0) for layer in own)
        return total + (self.profile.step_call_s if trains else 0.0)

    def copy_s(self, layers: Iterable[int]) -> float:
        """Seconds to copy the weights of one stage's layers.

        Gradients of as many bytes take as long. Shared parameters count once.

        Arguments:
            layers: the stage's layers, ascending.
        """
        return sum(layer.copy_s for layer in self._once_each(layers))

    def _once_each(self, layers: Iterable[int]) -> list[Layer]:
        """Layers, except layers with parameters that all appear in earlier layers."""
        seen: set[str] = set()
        found = []
        for layer in (self.profile.layers[i] for i in layers):
            if not (layer.parameters and seen.issuperset(layer.parameters)):
                found.append(layer)
                seen.update(layer.parameters)
        return found


def ready_fractions(
    backward_s: np.ndarray, layers: Sequence[int], groups: Sequence[Sequence[int]]
) -> tuple[float, ...]:
    """When the gradients of each bucket are complete, as a fraction of the backward.

    Arguments:
        backward_s: seconds of the backward of every layer of the profile.
        layers: the stage's layers, ascending. The backward visits them from the last to the first.
        groups: for each gradient bucket, the layers with gradients in it.

    Returns:
        A fraction of the stage's backward for each bucket. Fractions never decrease, because buckets are completed in
            the order of their numbers (hocket/program/order.py, rule 2).
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
    """Smallest ratio of a layer's seconds on another device type to the profiled ones.

    Seconds of forward, backward, step and copy are compared.

    Arguments:
        profile: profile with the profiled seconds.
        other: the same profile with seconds on the other device type.

    Returns:
        1 if all profiled seconds are 0.
    """
    names = ("forward_s", "backward_s", "step_s", "copy_s")
    pairs = [(np.ravel([getattr(layer, name) for layer in one.layers]) for one in (profile, other)) for name in names]
    quotients = [there / here for own in pairs for here, there in zip(*own, strict=True) if here > 0]
    return float(min(quotients, default=1.0))


def type_factor(profile_type: str, dtype: str, cluster: Cluster, name: str) -> float:
    """Factor on profiled seconds for a device type that the profile does not know.

    It is the ratio of peak rates (`flops_factor`).

    Arguments:
        profile_type: the profiled device type.
        dtype: data type of the profile.
        name: the other device type.

    Raises:
        InputError: one of the two types, or its rate for the data type, is unknown.
    """
    described = {kind.name: kind.flops_per_s for kind in cluster.types}

    def rates_of(kind: str) -> dict[str, float] | None:
        known = described.get(kind)
        return known or (catalog.device_type(kind).flops_per_s if kind in catalog.names() else None)

    return flops_factor(profile_type, rates_of(profile_type), rates_of(name), dtype)


def flops_factor(profile_type: str, rates: dict[str, float] | None, own: dict[str, float] | None, dtype: str) -> float:
    """Factor on profiled seconds for another device type: the ratio of peak rates.

    Arguments:
        profile_type: name of the profiled device type, for the error message.
        rates: peak operations per second of the profiled type, by data type; None if unknown.
        own: peak operations per second of the other type, by data type; None if unknown.
        dtype: data type of the profile.

    Raises:
        InputError: a type, or its rate for `dtype`, is unknown.
    """
    if not rates or not own or dtype not in rates or dtype not in own:
        raise InputError(
            "device type",
            f"a profile measured on {profile_type!r}, and no {dtype} rate of this type or of the cluster's type, to "
            "convert its times",
            f"a known peak rate for {dtype} of both device types",
            "Measure the profile on the cluster's own device type, or describe both types in the cluster file, under "
            "`types`, with `flops_per_s`.",
        )
    return rates[dtype] / own[dtype]
