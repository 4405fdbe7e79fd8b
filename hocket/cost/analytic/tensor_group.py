"""Seconds of a tensor-parallel rank, with all-reduces and gathers of its group.

A rank waits for each all-reduce and gather, so they are part of its forward and backward (Narayanan's dissertation,
section 4.2.3).
"""

from dataclasses import replace

from hocket.cost.compute import type_factor
from hocket.hardware.cluster import Cluster
from hocket.hardware.groups import Grouped
from hocket.profiling.layer import Layer, OtherDeviceLayer
from hocket.profiling.profile import ModelProfile


def of_group(profile: ModelProfile, group: Grouped) -> ModelProfile:
    """Profile of one tensor-parallel rank, with all-reduces and gathers of its group.

    Arguments:
        profile: profile of one rank, without them.
        group: cluster of tensor-parallel groups, each with as many ranks as the profile's `tensor` says.
    """
    if profile.tensor == 1:
        return profile
    profile = _known_on(profile, group.cluster)
    layers = tuple(_reducing(layer, group) for layer in profile.layers)
    # If each rank sends whole tensors, it does not matter whether other ranks have the same ones.
    tensors = profile.tensors if group.slices else tuple(replace(tensor, own=False) for tensor in profile.tensors)
    return replace(profile, layers=layers, tensors=tensors)


def _known_on(profile: ModelProfile, cluster: Cluster) -> ModelProfile:
    """The profile with seconds of computation for every device type of the cluster.

    For a type that the profile does not know, they are scaled by the ratio of peak rates.
    """
    names = {node.device_type: None for node in cluster.nodes} or {cluster.device_type: None}
    found = [profile.on(name) for name in profile.elsewhere]
    for name in names:
        if name not in (profile.device_type, *profile.elsewhere):
            found.append(_scaled(profile, name, type_factor(profile.device_type, profile.dtype, cluster, name)))
    return profile.knowing(found) if len(found) > len(profile.elsewhere) else profile


def _scaled(profile: ModelProfile, name: str, factor: float) -> ModelProfile:
    def of(layer: Layer) -> Layer:
        forward_s, backward_s = (tuple(factor * s for s in own) for own in (layer.forward_s, layer.backward_s))
        step_s, copy_s = factor * layer.step_s, factor * layer.copy_s
        return replace(layer, forward_s=forward_s, backward_s=backward_s, step_s=step_s, copy_s=copy_s, elsewhere=())

    return replace(profile, device_type=name, layers=tuple(of(layer) for layer in profile.layers))


def _reducing(layer: Layer, group: Grouped) -> Layer:
    if not layer.reduced_bytes and not layer.gathered_bytes:
        return layer
    nothing = (0.0,) * len(layer.forward_s)
    reduce_s = [group.all_reduce_s(size) for size in layer.reduced_bytes or nothing]
    gather_s = [group.gather_s(size) for size in layer.gathered_bytes or nothing]
    ways = list(zip(layer.reductions, layer.gathers, strict=True))
    forward_s, backward_s = (
        [reductions * a + gathers * b for a, b in zip(reduce_s, gather_s, strict=True)] for reductions, gathers in ways
    )

    def reducing(one: Layer | OtherDeviceLayer) -> dict[str, tuple[float, ...]]:
        return {
            "forward_s": tuple(s + more for s, more in zip(one.forward_s, forward_s, strict=True)),
            "backward_s": tuple(s + more for s, more in zip(one.backward_s, backward_s, strict=True)),
        }

    elsewhere = tuple(replace(one, **reducing(one)) for one in layer.elsewhere)  # type: ignore[arg-type]
    return replace(layer, **reducing(layer), elsewhere=elsewhere)  # type: ignore[arg-type]
