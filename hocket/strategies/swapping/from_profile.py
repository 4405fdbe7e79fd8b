"""Server and layer profile for Harmony's tuner, from a profile and a cluster.

The costs of a layer are those of a stage with this layer alone. A task of a pack needs at most the sum of the bytes of
its layers' tasks, so a sum that fits the memory is on the safe side. The memory of the final plan is proved for its
program.
"""

from dataclasses import replace

import numpy as np

from hocket.cost.model import CostModel
from hocket.cost.sizes import PlanSizes
from hocket.hardware.cluster import Cluster
from hocket.profiling.profile import ModelProfile
from hocket.program.instruction import Kind
from hocket.program.passes.borders import StageCut, stage_shapes
from hocket.program.passes.swapping.settings import StageSwap, stages_of
from hocket.strategies.base.strategy import compile_strategy
from hocket.strategies.swapping.costs import Array, DirectionCosts, LayerProfile, Server


def server_of(cluster: Cluster, devices: tuple[int, ...] = ()) -> Server:
    """A cluster, or some of its devices, as one server of the tuner.

    The swap bandwidth of several servers adds up. In a heterogeneous cluster every device has the least memory and the
    slowest host link of all. Freeing costs only the time of an instruction, because a program reuses its memory.

    Arguments:
        devices: indices of the devices; all devices of the cluster if empty.
    """
    devices = devices or tuple(range(cluster.devices))
    peer = min(level.bandwidth_bytes_per_s for level in cluster.levels)
    swap = len(devices) * min(_link_share(cluster, device, devices) for device in devices)
    capacity = min(cluster.capacity_bytes(device) for device in devices)
    return Server(len(devices), capacity, swap, peer, swap, freeing_s=cluster.instruction_s)


def _link_share(cluster: Cluster, device: int, devices: tuple[int, ...]) -> float:
    """Bytes per second of a device on its host link.

    The given devices on the same server use the link at the same time, if they share it.
    """
    link, shared = cluster.host_link_of(device)
    server = cluster.component(device, 1)
    beside = sum(cluster.component(other, 1) == server for other in devices) if shared else 1
    return link.bandwidth_bytes_per_s / beside


def layer_profile(profile: ModelProfile, cluster: Cluster, device: int = 0) -> LayerProfile:
    """Seconds and bytes of each layer on a device, for every profiled microbatch size."""
    cuts = tuple(StageCut((k,), (device,), recompute=True) for k in range(len(profile.layers)))
    options = {"mode": "data", "just_in_time": not profile.needs_norm}
    alone = tuple(
        replace(shape, tied=()) for shape in stage_shapes(profile, cuts)
    )  # tied weights do not change a layer's own tasks
    program = compile_strategy("harmony", alone, 1, options)
    instructions = [i for _, i in program.instructions()]
    rows = []
    for size in profile.microbatch_sizes:
        costs = CostModel(profile, cluster, cuts, (size,), swaps=True)
        figures = stages_of(program, PlanSizes(costs, program))
        seconds = np.zeros((3, len(cuts)))
        for i in instructions:
            if i.kind in (Kind.FORWARD, Kind.BACKWARD, Kind.STEP):
                row = 2 if i.kind is Kind.STEP else int(i.kind is Kind.BACKWARD or i.again)
                seconds[row, i.stage] += costs.seconds(i)
        rows.append((seconds, _border(profile, size), figures))
    # The bytes of a layer's task include its input once (LayerProfile). Inputs that are kept for backwards are counted
    # elsewhere.
    ahead, back = ([_held(figures, border, way) for _, border, figures in rows] for way in (False, True))
    sizes = np.array(profile.microbatch_sizes, dtype=float)
    seconds_of = [np.array([seconds[way] for seconds, *_ in rows]) for way in (0, 1)]
    largest = rows[-1]
    return LayerProfile(
        DirectionCosts(sizes, seconds_of[0], np.array(ahead)),
        DirectionCosts(sizes, seconds_of[1], np.array(back)),
        largest[1] / profile.microbatch_sizes[-1],
        np.array([stage.weights_bytes + stage.buffers_bytes for stage in largest[2]]),
        largest[0][2],
    )


def _held(figures: tuple[StageSwap, ...], border: Array, backward: bool) -> Array:
    """Bytes of a task of each layer, with the layer's input once and without outputs.

    Arguments:
        figures: bytes of each layer's values and instructions.
        border: bytes of a microbatch's input of each layer.
    """
    behind = np.append(border[1:], 0.0)
    found = []
    for k, stage in enumerate(figures):
        if not backward:
            found.append(stage.weights_bytes + border[k] + max(0.0, stage.forward_bytes - behind[k]))
            continue
        gradients = sum(stage.gradients_bytes)
        runs = stage.stash_bytes + stage.backward_bytes
        steps = stage.optimizer_bytes + stage.step_bytes
        found.append(stage.weights_bytes + gradients + border[k] + max(0.0, runs - border[k], steps))
    return np.array(found)


def _border(profile: ModelProfile, size: int) -> Array:
    """Bytes of a microbatch's input of each layer.

    They include outputs of earlier layers that only later layers read. For the first layer they are the batch.

    Arguments:
        size: microbatch size.
    """
    crossing = np.zeros(len(profile.layers) + 1)
    for tensor, amount in zip(profile.tensors, profile.tensor_bytes(size), strict=True):
        if tensor.source < 0:
            crossing[0] += amount
            crossing[1] -= amount
        elif tensor.targets:
            crossing[tensor.source + 1] += amount
            crossing[max(tensor.targets) + 1] -= amount
    return np.maximum(np.cumsum(crossing)[:-1], 0.0)
