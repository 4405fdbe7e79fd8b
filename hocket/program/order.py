"""Semantics of a program: reads and writes of each kind, and when each may start.

Rules of this file: simulator, engines, builder and `check` all ask here, and nobody else decides.

1. An instruction may start when everything before it in its lane has finished and all values that it reads exist.
2. The values that it writes exist when it finishes. Exception: an accumulator bucket exists as soon as its backward
   has produced the bucket's last gradient, so that an all-reduce overlaps with the rest of that backward. Buckets
   appear in the order of their numbers.
3. A send completes only with its receive (rendezvous). The k-th send of a lane meets the k-th receive of the peer's
   lane. A send that the sender copies itself (`Cluster.sender_copies`) is over, if its receive is posted, before the
   next instruction of the compute lane begins.
4. A collective runs when all ranks of its group have reached it. The k-th collective of a lane meets the k-th of the
   other ranks' lanes.
5. The values that an instruction frees are gone when it finishes. The values that a send frees are gone when the
   compute instruction that then runs on its device finishes, or before the next one begins. A value that replaces a
   freed one (see `heir_of`) uses its memory. Copies on the host use no device memory.
6. A receive, or a gather of weights for one round, is posted as soon as fewer messages of its lane than the lane's
   window are posted and not consumed (see receive_window.py). From then on it has its memory. It can start no earlier.

In this file, `stages` are all stages of the program, and `stage` is the number of one of them. A round is one turn of
all replicas of a stage. Waves are two replicas of the whole model on the same devices, as stages 0 and 1
(strategies/schedules/tick_tock.py).
"""

from collections.abc import Iterator
from math import gcd

from hocket.program.instruction import Instruction, Kind, Value, ValueKind
from hocket.program.program import Program, StageShape
from hocket.program.rule import WAVES, Rule

Stages = tuple[StageShape, ...]


def waves(rule: Rule) -> bool:
    """True if the stages are waves: model replicas in turn on the same devices.

    Source: Wang et al., Wavelet (MLSys 2021), section 3.2.
    """
    return rule.kind == "averaged"


def twin(stages: Stages, rule: Rule, stage: int, microbatch: int) -> Value | None:
    """Signal of the other wave that a forward of a wave waits for.

    The signal (ENDED) marks the end of the other wave's previous forward on the same device. A backward waits for the
    backward of the same microbatch of the other wave (see `_awaited`).

    Arguments:
        stage: number of the wave.

    Returns:
        None if the forward waits for no signal.
    """
    half = rule.batch[stage] // WAVES
    if stage:
        return Value(ValueKind.ENDED, 0, microbatch - half, 0)
    before = microbatch - stages[stage].round
    if before < 0:
        return None
    # In the first round of a batch, the previous forward is the other wave's last one of the batch before.
    same = rule.update(stage, before) == rule.update(stage, microbatch) and rule.takes(stage, before)
    return Value(ValueKind.ENDED, 1, before + half if same else before, 0)


def _awaited(stages: Stages, rule: Rule, stage: int, microbatch: int, part: int) -> tuple[Value, ...]:
    """Signal of the other wave that a forward or backward waits for.

    Arguments:
        part: 0 for a forward, 1 for a backward or a recomputation.

    Returns:
        The signal in a tuple; empty without waves, or if there is nothing to wait for.
    """
    if not _takes_turns(stages, rule, stage, part):
        return ()
    found = twin(stages, rule, stage, microbatch)
    return () if found is None else (found._replace(part=part),)


def _signals(stages: Stages, rule: Rule, stage: int, microbatch: int, part: int) -> tuple[Value, ...]:
    """Signal of a wave that its forward or backward has ended, in a tuple.

    Arguments:
        part: 0 for a forward and its recomputation, 1 for a backward.

    Returns:
        The empty tuple without waves, or if the other wave does not wait for it.
    """
    return (Value(ValueKind.ENDED, stage, microbatch, part),) if _takes_turns(stages, rule, stage, part) else ()


def _takes_turns(stages: Stages, rule: Rule, stage: int, part: int) -> bool:
    return waves(rule) and not (part and stages[stage].overlaps)


def lent(stages: Stages, rule: Rule, stage: int, update: int) -> tuple[Value, ...]:
    """Gradient buckets that a wave's step keeps for the next step of the other wave.

    Returns:
        The empty tuple without waves.
    """
    return tuple(Value(ValueKind.LENT, stage, update, b) for b in range(stages[stage].buckets)) if waves(rule) else ()


def left_over(stages: Stages, rule: Rule, microbatch: int) -> tuple[Value, ...]:
    """Signals and gradients of the second wave that nothing reads at the end of a run.

    In a longer run, the first wave would read them.

    Arguments:
        microbatch: the last microbatch of the run.
    """
    signals = (value for part in (0, 1) for value in _signals(stages, rule, 1, microbatch, part))
    return *signals, *lent(stages, rule, 1, rule.update(1, microbatch))


def weight_read(stages: Stages, rule: Rule, stage: int, microbatch: int, backward: bool) -> Value:
    """Weights that a forward or backward reads.

    The value is a weight version, or the weights that were gathered for the round (ZeRO-3).

    Arguments:
        backward: True for a backward and its recomputed forward.
    """
    if stages[stage].gathers:
        return Value(ValueKind.GATHERED, stage, first_of_round(stages, stage, microbatch), int(backward))
    version = rule.backward_version(stage, microbatch) if backward else rule.version(stage, microbatch)
    return Value(ValueKind.WEIGHTS, stage, version)


def first_of_round(stages: Stages, stage: int, microbatch: int) -> int:
    """First of the microbatches that a stage's replicas run in the same round."""
    return microbatch - microbatch % stages[stage].round


def piece(stages: Stages, source: int, target: int) -> int:
    """Number of microbatches in one message between two stages.

    Stages may run several microbatches as one (`StageShape.merged`). The number divides the merged microbatches of
    both stages, so no message mixes samples of two forwards or two backwards.
    """
    return gcd(stages[source].merged, stages[target].merged)


def pieces(stages: Stages, what: ValueKind, source: int, target: int, stage: int, microbatch: int) -> Iterator[Value]:
    """Messages between two stages that belong to one forward or backward of a stage.

    A forward or backward of merged microbatches may read or write several messages.

    Arguments:
        what: ACTIVATION or GRADIENT.
        source, target: stages at the stage boundary, in the direction of activations.
        stage: the stage with the forward or backward: the source or the target.
        microbatch: first microbatch of the forward or backward.
    """
    step = piece(stages, source, target)
    return (Value(what, source, m, target) for m in range(microbatch, microbatch + stages[stage].merged, step))


def inputs_of(stages: Stages, stage: int, microbatch: int) -> tuple[Value, ...]:
    """Tensors of the batch, and activations, that a forward reads.

    They are kept until the backward ends.
    """
    shape = stages[stage]
    own = (Value(ValueKind.INPUT, stage, microbatch),) if shape.batch else ()
    came = (pieces(stages, ValueKind.ACTIVATION, source, stage, stage, microbatch) for source in shape.sources)
    return own + tuple(value for values in came for value in values)


def own_microbatches(stages: Stages, rule: Rule, stage: int, update: int, device: int) -> range:
    """Microbatches of an update that one replica runs, ascending.

    Of merged microbatches, only the first is listed.

    Arguments:
        device: device of the replica.
    """
    whole, shape = rule.microbatches(stage, update), stages[stage]
    turn = shape.devices.index(device) - whole.start // shape.merged
    return range(whole.start + turn % len(shape.devices) * shape.merged, whole.stop, shape.round)


def previous_in_update(stages: Stages, rule: Rule, stage: int, microbatch: int) -> int | None:
    """Microbatch that the replica ran before this one for the same update.

    The backward of a microbatch adds to the gradient accumulator of the previous one.

    Returns:
        None for the replica's first microbatch of an update.
    """
    before = microbatch - stages[stage].round
    first = rule.microbatches(stage, rule.update(stage, microbatch)).start
    return before if before >= first else None


def last_in_update(stages: Stages, rule: Rule, stage: int, update: int, device: int) -> int | None:
    """Last microbatch of an update that the replica on a device runs.

    Returns:
        None if the replica runs no microbatch of the update.
    """
    own = own_microbatches(stages, rule, stage, update, device)
    return own[-1] if own else None


def accumulators(stages: Stages, stage: int, microbatch: int) -> tuple[Value, ...]:
    """Gradient accumulators, one for each bucket, that a backward writes."""
    return tuple(Value(ValueKind.ACCUMULATOR, stage, microbatch, b) for b in range(stages[stage].buckets))


def forward_values(
    stages: Stages, rule: Rule, stage: int, microbatch: int, again: bool
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Values that a forward reads, and values that it writes.

    Without a backward (`Rule.trains`) it saves no activations.

    With waves, a recomputed forward waits until the other wave's saved activations are gone. Then it signals that this
    microbatch draws no more random numbers; the other wave's next forward waits for that signal.

    Arguments:
        again: True for a forward that recomputes saved activations before the backward.
    """
    shape = stages[stage]
    reads = (*inputs_of(stages, stage, microbatch), weight_read(stages, rule, stage, microbatch, backward=again))
    made = (pieces(stages, ValueKind.ACTIVATION, stage, target, stage, microbatch) for target in shape.targets)
    outputs = tuple(value for values in made for value in values)
    stash = (Value(ValueKind.STASH, stage, microbatch),)
    over = _signals(stages, rule, stage, microbatch, 0)
    if not rule.trains:
        return reads, outputs
    if again:
        return reads + _awaited(stages, rule, stage, microbatch, 1), stash + over
    return reads + _awaited(stages, rule, stage, microbatch, 0), outputs if shape.recompute else outputs + stash + over


def backward_values(
    stages: Stages, rule: Rule, stage: int, microbatch: int
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Values that a backward reads, and values that it writes."""
    shape = stages[stage]
    arriving = tuple(
        value
        for target in shape.targets
        if stage in stages[target].gradients
        for value in pieces(stages, ValueKind.GRADIENT, stage, target, stage, microbatch)
    )
    before = previous_in_update(stages, rule, stage, microbatch)
    sums = accumulators(stages, stage, before) if before is not None else ()
    reads = (
        *inputs_of(stages, stage, microbatch),
        Value(ValueKind.STASH, stage, microbatch),
        weight_read(stages, rule, stage, microbatch, backward=True),
        *arriving,
        *sums,
    )
    leaving = tuple(
        value
        for source in shape.gradients
        for value in pieces(stages, ValueKind.GRADIENT, source, stage, stage, microbatch)
    )
    reads += _awaited(stages, rule, stage, microbatch, 1)
    return reads, leaving + accumulators(stages, stage, microbatch) + _signals(stages, rule, stage, microbatch, 1)


def reduce_group(stages: Stages, stage: int, bucket: int) -> tuple[int, ...]:
    """Devices that sum one gradient bucket.

    The group contains the replicas of the stage and of all stages that are tied to the bucket. Devices of the other
    identical pipelines (`StageShape.columns`) take part as well, but are not listed.
    """
    tied = dict(stages[stage].tied).get(bucket, (stage,))
    return tuple(sorted({device for s in tied for device in stages[s].devices}))


def together(stages: Stages, stage: int, bucket: int) -> tuple[tuple[int, int], ...]:
    """(stage, bucket) pairs on the same devices that share a bucket's tied weights.

    The pairs are ascending and include the given one. Each of these stages has separate weights, gradients and
    optimizer state, and sums its gradients over devices by itself. Its step adds the gradients of all pairs, so their
    weights stay equal.

    Returns:
        Only the given pair if the bucket is not tied, or if the stages are on different devices: these use one common
            all-reduce instead.
    """
    tied = dict(stages[stage].tied).get(bucket)
    if tied is None or len({frozenset(stages[s].devices) for s in tied}) > 1:
        return ((stage, bucket),)
    buckets = {s: [b for b, others in stages[s].tied if others == tied] for s in tied}
    position = buckets[stage].index(bucket)
    return tuple((s, own[position]) for s, own in buckets.items())


def added(stages: Stages, value: Value) -> bool:
    """True if the steps of several stages on one device read these gradients."""
    return (
        value.what in (ValueKind.ACCUMULATOR, ValueKind.REDUCED) and len(together(stages, value.stage, value.part)) > 1
    )


def summed(stages: Stages, stage: int, bucket: int) -> bool:
    """True if the gradients of a bucket are summed over several devices."""
    return stages[stage].columns > 1 or len(reduce_group(stages, stage, bucket)) > 1


def stages_on(stages: Stages, device: int) -> list[int]:
    """Indices of the stages on a device, ascending."""
    return [s for s, shape in enumerate(stages) if device in shape.devices]


def norms(stages: Stages, rule: Rule) -> bool:
    """True if the norm of all gradients is a separate instruction.

    The step of a wave has all gradients and computes the norm itself.
    """
    return stages[0].needs_norm and not waves(rule)


def norm_group(stages: Stages) -> tuple[int, ...]:
    """Devices that sum the squares of their gradients: all devices of the program."""
    return tuple(sorted({device for shape in stages for device in shape.devices}))


def norm_summed(stages: Stages) -> bool:
    """True if the squares of gradients are summed over several devices."""
    return len(norm_group(stages)) > 1 or stages[0].columns > 1


def norm_of(stages: Stages, update: int, device: int) -> Value:
    """Value of the gradient norm that the steps of an update read on a device.

    The value belongs to the first stage on the device.
    """
    what = ValueKind.NORM if norm_summed(stages) else ValueKind.SQUARES
    return Value(what, stages_on(stages, device)[0], update)


def gradients_of(stages: Stages, rule: Rule, stage: int, update: int, device: int) -> list[Value]:
    """Final weight gradients of one update of a stage, on the replica of a device.

    The gradients are ordered by bucket. Gradients of tied stages on the same devices are included (see `together`).
    """
    found = []
    for own in range(stages[stage].buckets):
        for s, bucket in together(stages, stage, own):
            last = last_in_update(stages, rule, s, update, device)
            if summed(stages, s, bucket):
                found.append(Value(sum_of(stages, s, bucket), s, update, bucket))
            elif last is not None:
                found.append(Value(ValueKind.ACCUMULATOR, s, last, bucket))
    return found


def norm_values(
    stages: Stages, rule: Rule, stage: int, update: int, device: int
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Values that a norm instruction reads, and values that it writes.

    The instruction reads the gradients of all stages on its device, and belongs to the first of these stages.
    """
    reads = [v for s in stages_on(stages, device) for v in gradients_of(stages, rule, s, update, device)]
    return tuple(dict.fromkeys(reads)), (Value(ValueKind.SQUARES, stage, update),)


def scattered(stages: Stages, stage: int, bucket: int) -> bool:
    """True if each replica gets only its shard of a bucket's sum (reduce-scatter).

    Weights that several stages share are whole on every replica.
    """
    return stages[stage].sharded and bucket not in dict(stages[stage].tied)


def sum_of(stages: Stages, stage: int, bucket: int) -> ValueKind:
    """Kind of value that holds a bucket's sum over devices: REDUCED or PART.

    The kind is PART, in separate memory, if each replica gets its shard and keeps only a shard of the weights.
    """
    return ValueKind.PART if stages[stage].gathers and scattered(stages, stage, bucket) else ValueKind.REDUCED


def step_values(
    stages: Stages, rule: Rule, stage: int, update: int, device: int
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Values that an optimizer step reads, and values that it writes."""
    reads = gradients_of(stages, rule, stage, update, device)
    if norms(stages, rule):
        reads.append(norm_of(stages, update, device))
    reads += [Value(ValueKind.SHARD if stages[stage].gathers else ValueKind.WEIGHTS, stage, update)]
    reads += [Value(ValueKind.OPTIMIZER, stage, update)]
    before = rule.before(stage, update)
    if before is not None:
        reads += lent(stages, rule, *before)
    made = ValueKind.SHARD if stages[stage].sharded else ValueKind.WEIGHTS
    own = (Value(made, stage, update + 1), Value(ValueKind.OPTIMIZER, stage, update + 1))
    return tuple(reads), own + lent(stages, rule, stage, update)


def gather_values(
    stages: Stages, rule: Rule, stage: int, index: int, part: int
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Values that an all-gather of weights reads, and values that it writes.

    The all-gather either makes a new version of the weights from shards, or the whole weights for one round (ZeRO-3).

    Arguments:
        index: the version, or the round's first microbatch.
        part: for a round, 0 for its forwards and 1 for its backwards.
    """
    if stages[stage].gathers:
        read = Value(ValueKind.SHARD, stage, rule.version(stage, index))
        return (read,), (Value(ValueKind.GATHERED, stage, index, part),)
    return (Value(ValueKind.SHARD, stage, index),), (Value(ValueKind.WEIGHTS, stage, index),)


def demanded(program: Program, instruction: Instruction) -> tuple[tuple[Value, ...], tuple[Value, ...]] | None:
    """Values that an instruction must read and write, by its kind, stage and index.

    Returns:
        (reads, writes); None for kinds that are checked elsewhere, such as transfers, collectives and swaps.
    """
    stages, rule = program.stages, program.rule
    stage, index = instruction.stage, instruction.index
    match instruction.kind:
        case Kind.LOAD:
            permits = (program.permit(stage, index),) if program.prefetch else ()
            return permits, (Value(ValueKind.INPUT, stage, index),)
        case Kind.FORWARD:
            reads, writes = forward_values(stages, rule, stage, index, instruction.again)
            if program.prefetch and stages[stage].batch and not instruction.again:
                writes = (*writes, program.next_permit(stage, index))
            return reads, writes
        case Kind.BACKWARD:
            return backward_values(stages, rule, stage, index)
        case Kind.NORM:
            return norm_values(stages, rule, stage, index, instruction.device)
        case Kind.STEP:
            return step_values(stages, rule, stage, index, instruction.device)
    return None


def early_writes(instruction: Instruction) -> tuple[Value, ...]:
    """Values that exist before the instruction finishes (rule 2 of this file).

    The values are in the order in which they appear.
    """
    if instruction.kind is not Kind.BACKWARD:
        return ()
    return tuple(v for v in instruction.writes if v.what is ValueKind.ACCUMULATOR)


# For each kind of written value: kinds of freed values with memory that it can reuse.
_HEIRS = {
    ValueKind.WEIGHTS: (ValueKind.WEIGHTS, ValueKind.SHARD),
    ValueKind.SHARD: (ValueKind.WEIGHTS, ValueKind.SHARD),
    ValueKind.OPTIMIZER: (ValueKind.OPTIMIZER,),
    ValueKind.ACCUMULATOR: (ValueKind.ACCUMULATOR,),
    ValueKind.REDUCED: (ValueKind.ACCUMULATOR,),
    ValueKind.NORM: (ValueKind.SQUARES,),
    ValueKind.LENT: (ValueKind.ACCUMULATOR, ValueKind.REDUCED),
}


def heir_of(instruction: Instruction, written: Value) -> Value | None:
    """Value that an instruction frees, and that gives its memory to a written value.

    See rule 5 of this file.

    Returns:
        None if the written value has separate memory.
    """
    ancestors = _HEIRS.get(written.what, ())
    for value in instruction.frees:
        same = value.what in ancestors and value.stage == written.stage and value.part == written.part
        if same and value.on_host == written.on_host:
            return value
    return None
