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
    LOSS_WEIGHT = "loss_weight"
    PRECISION = "precision"
    SUBTASKS = "subtask_bytes"
    SHORT_WEIGHTS = "weights as short as that"
    UNLIKE_WEIGHTS = "weights of several types"
    COMPILE = "compile"
    WHOLE_STEPS = "an optimizer that looks at whole weights"
    SWAP = "swap"
    SKIP = "on_nan: skip"


def _in_parts(who: str, instead: str) -> str:
    """Return the reason why an optimizer that needs whole weights cannot step parts."""
    alone = "take one that treats every number of a weight alone, such as SGD or Adam"
    return (
        f"{who} of a weight, and its step of a weight is not the steps of its parts; {alone}, or a plan with {instead}"
    )


REFUSED: dict[tuple[Feature, Feature], str] = {
    (Feature.CLIP, Feature.APART): (
        "the norm needs the gradients of all stages before any of them updates, and stages update at different moments: to wait for "
        "each other would be the flush that these strategies exist to avoid; take flush, gpipe, interleaved or data_parallel, or "
        "leave clip_grad_norm out of the job"
    ),
    (Feature.LOSS_WEIGHT, Feature.ASYNCHRONOUS): (
        "an update is divided by the weights of all its microbatches, which are known when the last of them has ended its backward, and "
        "these strategies update earlier or with gradients of two updates; take flush, gpipe, interleaved or data_parallel, or leave "
        "loss_weight out of the job: then the losses of microbatches count by their samples"
    ),
    (Feature.SHARD_FULL, Feature.ASYNCHRONOUS): (
        "weights of several versions are in use, and each would have to be kept to be gathered again; take a synchronous strategy, "
        "or shard: optimizer"
    ),
    (Feature.SHARD_FULL, Feature.TIED): (
        "what several stages share would have to stay whole; put the layers that share weights on one stage, or take shard: optimizer"
    ),
    (Feature.PIPEDREAM, Feature.TIED): (
        "with a weight version for each input the stages that share weights update them at different times; put the layers on one "
        "stage, or take two_bw or flush"
    ),
    (Feature.NAIVE, Feature.VERTICAL_SYNC): (
        "one takes the newest weights for a backward, the other the oldest that are kept; leave one of them out"
    ),
    (Feature.NAIVE, Feature.RECOMPUTE): (
        "the backward would recompute with other weights than its forward used; leave one of them out"
    ),
    (Feature.VERTICAL_SYNC, Feature.UNEQUAL_REPLICAS): (
        "stages with unequal numbers of replicas count their versions differently; give all stages as many replicas, or leave "
        "vertical_sync out"
    ),
    (Feature.SLICES, Feature.SEQUENCE_PARALLEL): "what goes between stages are slices already; leave slices out",
    (Feature.WAVES, Feature.TENSOR): (
        "members of a group sum up among themselves in the midst of layers, in one order, and two waves compute at once; take tensor: 1"
    ),
    (Feature.WAVES, Feature.COMPILE): (
        "code would be made for two threads at once, which torch.compile does not promise to do; leave compile out"
    ),
    (Feature.COMPILE, Feature.TENSOR): (
        "members sum up among themselves in the midst of a stage, which torch.compile cannot take whole; leave compile out, or take "
        "tensor: 1"
    ),
    (Feature.PRECISION, Feature.SHORT_WEIGHTS): (
        "sums of gradients and the optimizer need a longer type; leave the model in float32, or precision out of the job"
    ),
    (Feature.PRECISION, Feature.UNLIKE_WEIGHTS): (
        "sums of gradients have the one type of the model's weights; give all weights that are trained one type"
    ),
    (Feature.SHARD_OPTIMIZER, Feature.WHOLE_STEPS): _in_parts("a device steps a part", "shard: none"),
    (Feature.SHARD_FULL, Feature.WHOLE_STEPS): _in_parts("a device steps a part", "shard: none"),
    (Feature.SUBTASKS, Feature.TENSOR): (
        "members of a group have parts of the same weights already; leave subtask_bytes out of the job, or take tensor: 1"
    ),
    (Feature.SUBTASKS, Feature.WHOLE_STEPS): _in_parts("a subtask steps its rows", "no subtask_bytes in its job"),
    (Feature.TENSOR, Feature.WHOLE_STEPS): _in_parts("a member steps its part", "tensor: 1"),
    (Feature.SWAP, Feature.ASYNCHRONOUS): (
        "what lies on the host is the newest version of a value alone, and several are in use; take harmony, data_parallel, gpipe, flush "
        "or another synchronous strategy, or leave swap out of the plan"
    ),
    (Feature.SWAP, Feature.SHARD_OPTIMIZER): (
        "values are swapped whole, and a replica has a part of the state; take shard: none, or leave swap out of the plan"
    ),
    (Feature.SWAP, Feature.SHARD_FULL): (
        "values are swapped whole, and weights are there in parts but while they are gathered; take shard: none, or leave swap out "
        "of the plan"
    ),
    (Feature.SKIP, Feature.ASYNCHRONOUS): (
        "all devices have to leave out the same update, and here stages (or waves) update at different moments with gradients that "
        "others compute meanwhile on other weights; take flush, gpipe, interleaved or data_parallel, or on_nan: stop"
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
