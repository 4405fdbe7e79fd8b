"""Weight gradients: buckets, sums over devices, and gathers of new weights.

The sum of a bucket follows its last backward.
"""

from collections.abc import Sequence

from hocket.program.instruction import GATHER, REDUCE, Instruction, Kind, Value, ValueKind, group_lane
from hocket.program.order import (
    accumulators,
    first_of_round,
    gather_values,
    last_in_update,
    norm_group,
    norm_summed,
    reduce_group,
    scattered,
    sum_of,
    summed,
)
from hocket.program.program import StageShape
from hocket.program.rule import Rule

DEFAULT_BUCKET_BYTES = 25 * 2**20  # as in DistributedDataParallel, for a fair comparison


def buckets_of(sizes_bytes: Sequence[float], limit_bytes: float = DEFAULT_BUCKET_BYTES) -> tuple[tuple[int, ...], ...]:
    """Group layers into gradient buckets, last layer first.

    This is the order in which a backward finishes the gradients. A bucket closes when it has reached the limit. Layers
    without weights join the open bucket, so the first layers of a stage never form a bucket without weights.

    Arguments:
        sizes_bytes: gradient bytes of each layer.

    Returns:
        Positions of the layers of each bucket.
    """
    buckets: list[list[int]] = [[]]
    filled = 0.0
    for position in reversed(range(len(sizes_bytes))):
        if filled >= limit_bytes and sizes_bytes[position] > 0:
            buckets.append([])
            filled = 0.0
        buckets[-1].append(position)
        filled += sizes_bytes[position]
    return tuple(tuple(bucket) for bucket in buckets)


def reductions(stages: tuple[StageShape, ...], rule: Rule, backward: Instruction) -> list[Instruction]:
    """All-reduces or reduce-scatters after a backward, one for each bucket.

    Returns:
        An empty list for a backward that is not the last of its update on its device. Buckets that only one device
            holds have no sum.
    """
    stage, microbatch, device = backward.stage, backward.index, backward.device
    update = rule.update(stage, microbatch)
    if last_in_update(stages, rule, stage, update, device) != microbatch:
        return []
    found = []
    for value in accumulators(stages, stage, microbatch):
        group = reduce_group(stages, stage, value.part)
        if summed(stages, stage, value.part):
            written = Value(sum_of(stages, stage, value.part), stage, update, value.part)
            found.append(
                Instruction(
                    Kind.REDUCE_SCATTER if scattered(stages, stage, value.part) else Kind.ALL_REDUCE,
                    stage,
                    update,
                    device,
                    group_lane(REDUCE, group),
                    (value,),
                    (written,),
                    (value,),
                    group=group,
                )
            )
    return found


def norm_sum(stages: tuple[StageShape, ...], norm: Instruction) -> list[Instruction]:
    """The all-reduce after a norm instruction; empty if one device has all gradients."""
    if not norm_summed(stages):
        return []
    group, (squares,) = norm_group(stages), norm.writes
    written = squares._replace(what=ValueKind.NORM)
    lane = group_lane(REDUCE, group)
    return [
        Instruction(
            Kind.ALL_REDUCE,
            norm.stage,
            norm.index,
            norm.device,
            lane,
            (squares,),
            (written,),
            (squares,),
            group=group,
        )
    ]


def gathers(stages: tuple[StageShape, ...], rule: Rule, compute: Instruction) -> list[Instruction]:
    """All-gathers of sharded weights that a compute instruction makes necessary.

    With sharded optimizer state, one follows each step, which wrote this device's shard. With sharded weights
    (ZeRO-3), one provides whole weights for each forward, and one for each backward or, if there is one, its
    recomputed forward.
    """
    stage, shape = compute.stage, stages[compute.stage]
    if not shape.sharded:
        return []
    index, part = compute.index + 1, -1
    if shape.gathers:
        if compute.kind is Kind.STEP or (compute.kind is Kind.BACKWARD and shape.recompute):
            return []
        index = first_of_round(stages, stage, compute.index)
        part = int(compute.kind is Kind.BACKWARD or compute.again)
    elif compute.kind is not Kind.STEP:
        return []
    reads, writes = gather_values(stages, rule, stage, index, part)
    group = tuple(sorted(shape.devices))
    lane, frees = group_lane(GATHER, group), () if shape.gathers else reads
    return [Instruction(Kind.ALL_GATHER, stage, index, compute.device, lane, reads, writes, frees, group=group)]
