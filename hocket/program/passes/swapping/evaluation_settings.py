"""Settings of swapping for an evaluation between two steps of a plan that swaps.

The bytes of weights are those of the training. Inputs and activations are given, because an evaluation may have other
samples, and because a forward without a backward saves nothing: what it passes on has memory of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hocket.program.passes.swapping.settings import StageSwap, Swapping
from hocket.program.program import StageShape


def evaluation_settings(
    swap: Swapping,
    stages: Sequence[StageShape],
    inputs_bytes: Mapping[int, float],
    activations_bytes: Mapping[tuple[int, int], float],
    growth: float = 1.0,
) -> Swapping:
    """Return the settings of an evaluation, within the memory budgets of the training.

    An evaluation changes no weights, so none are written back. The policy "lru", which writes unchanged values as well,
    becomes "next_use".

    Arguments:
        swap: settings of the training.
        stages: stages of the evaluation.
        inputs_bytes: for each stage, bytes that it reads of the data for one microbatch; a missing stage reads none.
        activations_bytes: bytes of one microbatch's activations, by (source stage, target stage).
        growth: samples of the largest microbatch of the evaluation, divided by those of the training's; at least 1.
    """
    policy = "next_use" if swap.policy == "lru" else swap.policy
    found = replace(swap, policy=policy, writes_clean=False)
    if not swap.stages:
        return found
    sizes = []
    for s, (own, shape) in enumerate(zip(swap.stages, stages, strict=True)):
        activations = tuple(activations_bytes[s, target] for target in shape.targets)
        sizes.append(
            StageSwap(
                weights_bytes=own.weights_bytes,
                input_bytes=inputs_bytes.get(s, 0.0),
                activations_bytes=activations,
                gradients_bytes=(0.0,) * shape.buckets,
                activation_gradients_bytes=(0.0,) * len(activations),
                load_bytes=own.load_bytes * growth,
                # What a training forward saves for the backward, it needs here only while it runs.
                forward_bytes=(own.forward_bytes + own.stash_bytes) * growth,
                buffers_bytes=own.buffers_bytes,
            )
        )
    found = replace(found, stages=tuple(sizes))
    if swap.host_bytes is None:
        return found
    devices = {device for shape in stages for device in shape.devices}
    resting_bytes = max(
        sum(own.optimizer_bytes for own, shape in zip(swap.stages, stages, strict=True) if device in shape.devices)
        for device in devices
    )
    return replace(found, host_bytes=swap.host_bytes - resting_bytes)  # the optimizer state stays on the host
