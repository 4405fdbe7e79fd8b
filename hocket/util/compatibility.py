"""Compatibility: pairs of features that cannot be combined, with the reasons.

A job, a strategy and a plan request features.

Each refusal of two features is written here, once. The planner, the compiler of a plan and a worker all call
`conflict`. The table is in docs/reference/feature-conflicts.md. tests/conformance/test_features.py tries every pair.
"""

from collections.abc import Collection
from enum import StrEnum

from hocket.errors import RefusedError


class Feature(StrEnum):
    """Feature that a user can request, named as the user meets it."""

    ASYNCHRONOUS = "pipedream, two_bw or tick_tock"
    APART = "pipedream or two_bw"
    PIPEDREAM = "pipedream"
    NAIVE = "naive"
    WAVES = "tick_tock"
    VERTICAL_SYNC = "vertical_sync"
    ROUNDS = "several stages a device"
    RECOMPUTE = "recompute"
    REPLICAS = "replicas"
    UNEQUAL_REPLICAS = "unequal replicas"
    SHARD_OPTIMIZER = "shard: optimizer"
    SHARD_FULL = "shard: full"
    TENSOR = "tensor"
    SLICES = "slices"
    SEQUENCE_PARALLEL = "sequence_parallel"
    TIED = "weights tied across stages"
    CLIP = "clip_grad_norm"
    CLIP_STAGES = "clip_grad_norm_over: stage"
    LOSS_WEIGHT = "loss_weight"
    LOSS_SCALE = "precision float16"
    PRECISION = "precision"
    SUBTASKS = "subtask_bytes"
    SHORT_WEIGHTS = "weights with as few bits"
    UNLIKE_WEIGHTS = "weights of several types"
    COMPILE = "compile"
    WHOLE_STEPS = "an optimizer that looks at whole weights"
    STAGES = "several stages"
    COUPLED_STEPS = "an optimizer that looks at several weights"
    SWAP = "swap"
    SKIP = "on_nan: skip"
    PREFETCH = "prefetch"
    LOADERS = "loaders"
    READ_ONCE = "read_once"


def _in_parts(who: str, instead: str) -> str:
    """Return the reason why an optimizer that needs whole weights cannot step parts.

    Arguments:
        who: subject and verb of the sentence, such as "a device steps a part".
        instead: change that avoids the conflict, such as "a plan with shard: none".
    """
    alone = "use an elementwise optimizer, such as SGD or Adam"
    return (
        f"{who} of a weight, but this optimizer's step of a part differs from its step of the whole weight; {alone}, "
        f"or {instead}"
    )


REFUSED: dict[tuple[Feature, Feature], str] = {
    (Feature.CLIP, Feature.APART): (
        "the norm needs the gradients of all stages before any stage updates, but here stages update at different "
        "times; use flush, gpipe, interleaved or data_parallel, or clip_grad_norm_over: stage, with which each stage "
        "clips by its own norm, or leave clip_grad_norm out of the job"
    ),
    (Feature.CLIP_STAGES, Feature.SHARD_OPTIMIZER): (
        "a replica steps with its shard of a stage's gradients, and does not know the norm of all of them; use shard: "
        "none, or clip_grad_norm_over: model under a synchronous strategy"
    ),
    (Feature.CLIP_STAGES, Feature.SHARD_FULL): (
        "a replica steps with its shard of a stage's gradients, and does not know the norm of all of them; use shard: "
        "none, or clip_grad_norm_over: model under a synchronous strategy"
    ),
    (Feature.CLIP_STAGES, Feature.TIED): (
        "stages that share a weight would multiply its gradient by different factors, and their copies of the weight "
        "would differ; put the layers that share weights on one stage, or use clip_grad_norm_over: model "
        "under a synchronous strategy"
    ),
    (Feature.LOSS_WEIGHT, Feature.ASYNCHRONOUS): (
        "an update is divided by the sum of the loss weights of all its microbatches, which is known only after their "
        "last backward, but pipedream and two_bw update earlier, and tick_tock uses the gradients of each half of a "
        "batch in two updates; use flush, gpipe, interleaved or data_parallel, or leave loss_weight out of the job: "
        "then the losses of microbatches are weighted by their samples"
    ),
    (Feature.LOSS_SCALE, Feature.ASYNCHRONOUS): (
        "an update with gradients that overflow is left out on all devices, but here stages (or waves) update at "
        "different times, with gradients of different weights; use flush, gpipe, interleaved or data_parallel, or "
        "precision bfloat16, which has the range of float32"
    ),
    (Feature.SHARD_FULL, Feature.ASYNCHRONOUS): (
        "several weight versions are in use, and each would have to be kept to be gathered again; use a synchronous "
        "strategy, or shard: optimizer"
    ),
    (Feature.SHARD_FULL, Feature.TIED): (
        "weights that several stages share would have to stay whole; put the layers that share weights on one stage, "
        "or use shard: optimizer"
    ),
    (Feature.PIPEDREAM, Feature.TIED): (
        "with a weight version for each input, the stages that share weights update them at different times; put the "
        "layers on one stage, or use two_bw or flush"
    ),
    (Feature.NAIVE, Feature.VERTICAL_SYNC): (
        "a backward uses the newest weights with naive, and the oldest stored weights with vertical_sync; leave one "
        "of them out"
    ),
    (Feature.NAIVE, Feature.RECOMPUTE): (
        "the backward would recompute with other weights than its forward used; leave one of them out"
    ),
    (Feature.VERTICAL_SYNC, Feature.UNEQUAL_REPLICAS): (
        "a stage updates after one microbatch of each replica, so stages with unequal numbers of replicas make unequal "
        "numbers of updates, and their weight versions do not correspond; give all stages the same number of replicas, "
        "or leave vertical_sync out"
    ),
    (Feature.SLICES, Feature.SEQUENCE_PARALLEL): "messages between stages are slices already; leave slices out",
    (Feature.WAVES, Feature.TENSOR): (
        "tensor-parallel ranks all-reduce inside layers, in one order, but two waves compute at the same time; use "
        "tensor: 1"
    ),
    (Feature.WAVES, Feature.COMPILE): (
        "two threads would compile at the same time, which torch.compile does not support; leave compile out"
    ),
    (Feature.COMPILE, Feature.TENSOR): (
        "tensor-parallel ranks all-reduce inside a stage, which torch.compile cannot compile as a whole; leave "
        "compile out, or use tensor: 1"
    ),
    (Feature.PRECISION, Feature.SHORT_WEIGHTS): (
        "gradient sums and the optimizer need a longer dtype; leave the model in float32, or leave precision out of "
        "the job"
    ),
    (Feature.PRECISION, Feature.UNLIKE_WEIGHTS): (
        "gradient sums have the dtype of the model's weights; give all trained weights the same dtype"
    ),
    (Feature.SHARD_OPTIMIZER, Feature.WHOLE_STEPS): _in_parts("a device steps a part", "a plan with shard: none"),
    (Feature.SHARD_FULL, Feature.WHOLE_STEPS): _in_parts("a device steps a part", "a plan with shard: none"),
    (Feature.SUBTASKS, Feature.TENSOR): (
        "tensor-parallel ranks have shards of the same weights already; leave subtask_bytes out of the job, or use "
        "tensor: 1"
    ),
    (Feature.SUBTASKS, Feature.WHOLE_STEPS): _in_parts(
        "a subtask steps its rows", "leave subtask_bytes out of the job"
    ),
    (Feature.TENSOR, Feature.WHOLE_STEPS): _in_parts("a tensor-parallel rank steps its shard", "a plan with tensor: 1"),
    (Feature.STAGES, Feature.COUPLED_STEPS): (
        "each stage steps its own weights, but this optimizer's step of a weight depends on the other weights; use an "
        "optimizer that steps each weight by itself, such as SGD or Adam, Job.clip_grad_norm for a norm over the whole "
        "model, or a plan with one stage, such as data_parallel"
    ),
    (Feature.SWAP, Feature.ASYNCHRONOUS): (
        "the host has only the newest version of a value, but several versions are in use; use harmony, "
        "data_parallel, gpipe, flush or another synchronous strategy, or leave swap out of the plan"
    ),
    (Feature.SWAP, Feature.SHARD_OPTIMIZER): (
        "values are swapped whole, but a replica has only a shard of the state; use shard: none, or leave swap out of "
        "the plan"
    ),
    (Feature.SWAP, Feature.SHARD_FULL): (
        "values are swapped whole, but weights are sharded except while gathered; use shard: none, or leave swap out "
        "of the plan"
    ),
    (Feature.PREFETCH, Feature.SWAP): (
        "swaps are chosen for inputs that are loaded when they are needed, so inputs that wait would not fit; leave one "
        "of them out of the plan"
    ),
    (Feature.PREFETCH, Feature.WAVES): (
        "each wave loads in its own compute lane, while the other wave computes; leave prefetch out of the plan"
    ),
    (Feature.LOADERS, Feature.WAVES): (
        "the loads of two waves have no fixed order, in which loaders could read ahead; leave loaders out"
    ),
    (Feature.READ_ONCE, Feature.LOSS_WEIGHT): (
        "the last stage computes loss weights from whole samples, so it has to read them itself; leave read_once out of "
        "the plan"
    ),
    (Feature.SKIP, Feature.ASYNCHRONOUS): (
        "all devices have to skip the same update, but here stages (or waves) update at different times, with "
        "gradients of different weights; use flush, gpipe, interleaved or data_parallel, or on_nan: stop"
    ),
}


def conflict(used: Collection[Feature]) -> str | None:
    """Find the first two features that conflict.

    Returns:
        The two features with the reason; None if there is no conflict.
    """
    for (one, other), reason in REFUSED.items():
        if one in used and other in used:
            return f"{one} with {other}: {reason}"
    return None


def check_together(place: str, *used: Feature, found: str = "") -> None:
    """Refuse features that conflict.

    Arguments:
        place: place of the error, as in every InputError.
        used: requested features.
        found: text before the reason; empty for the reason alone.

    Raises:
        RefusedError: for the first two features that conflict.
    """
    reason = conflict(used)
    if reason is not None:
        raise RefusedError(place, f"{found}: {reason}" if found else reason)
