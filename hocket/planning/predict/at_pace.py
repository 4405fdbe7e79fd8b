"""Predict a plan's iteration on devices that are slower than their profile.

Each device has a factor: how many times as long as profiled the same work takes there. The smallest factor slows
down everything on all devices: computation, and messages as well, because between CPU cores they are work of the same
cores. The rest of a device's factor slows down its computation alone. The plan is simulated with slower devices, so
that a pipeline waits for its slow stage, and replicas wait for the slowest one.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import isclose

from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Node
from hocket.planning.plan import Plan
from hocket.planning.predict.predict import predict_iteration
from hocket.profiling.profile import ModelProfile

_SAME = 1e-3  # factors that differ by less count as equal: each further factor is simulated with its own profile


def paced_iteration_s(plan: Plan, profile: ModelProfile, slower: Mapping[int, float]) -> float:
    """Seconds of an iteration at the devices' paces.

    Arguments:
        slower: by device, the factor on profiled seconds. Missing devices have the smallest of the given factors; {}
            means that no device is slower.

    Raises:
        InputError: a factor that is not positive, or a tensor-parallel plan: its ranks cannot be slowed down one
            by one.
    """
    if not slower:
        return predict_iteration(plan, profile).iteration_s
    if min(slower.values()) <= 0:
        raise InputError("slower", str(min(slower.values())), "factors > 0")
    if plan.tensor > 1:
        raise InputError("tensor", str(plan.tensor), "1: ranks of a group cannot be slowed down one by one")
    common = min(slower.values())
    beyond = {d: factor / common for d, factor in slower.items() if not isclose(factor, common, rel_tol=_SAME)}
    if not beyond:
        return common * predict_iteration(plan, profile).iteration_s
    cluster, names = _with_own_types(plan.cluster, beyond)
    others = [_slowed(profile, names[device], factor) for device, factor in beyond.items()]
    return common * predict_iteration(replace(plan, cluster=cluster), profile.knowing(others)).iteration_s


def _with_own_types(cluster: Cluster, devices: Mapping[int, float]) -> tuple[Cluster, dict[int, str]]:
    """Give each slow device its own device type.

    Returns:
        The cluster, and the name of the new type by device.
    """
    names = {device: f"{cluster.node_of(device).device_type} of device {device}" for device in devices}
    nodes: list[Node] = []
    for device in range(cluster.devices):
        node = cluster.node_of(device)
        nodes.append(replace(node, devices=1, device_type=names.get(device, node.device_type)))
    types = tuple(replace(cluster.type_of(device), name=name) for device, name in names.items())
    return replace(cluster, device_type="", nodes=tuple(nodes), types=(*cluster.types, *types)), names


def _slowed(profile: ModelProfile, device_type: str, factor: float) -> ModelProfile:
    """The profile of another device type, on which all seconds are longer by a factor."""
    layers = tuple(
        replace(
            layer,
            forward_s=tuple(s * factor for s in layer.forward_s),
            backward_s=tuple(s * factor for s in layer.backward_s),
            step_s=layer.step_s * factor,
            copy_s=layer.copy_s * factor,
        )
        for layer in profile.layers
    )
    return replace(profile, device_type=device_type, layers=layers)
