"""Swaps counted one by one, without formulas.

A memory holds tensors, and operations ask for them. An operation names the tensors that it reads, makes and ends.
Before it, its device loads missing tensors. After it, all tensors that the next operation does not use are evicted;
between tasks, all tensors are. An evicted tensor is written to the host if it is new there, or always.
"""

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from hocket.cost.swapping.volumes import Scheme, SwapKind, SwapLayer, Volume

Key = tuple[SwapKind, int, int]  # kind, layer, microbatch (-1 for none)


@dataclass
class Operation:
    """One pack and one microbatch, or an update.

    Attributes:
        task: the task that its device keeps tensors for.
        sends: tensors that go to another device.
    """

    device: int
    task: tuple[object, ...]
    reads: set[Key]
    makes: set[Key]
    ends: set[Key]
    sends: set[Key] = field(default_factory=set)


def operations(layers: int, scheme: Scheme) -> list[Operation]:
    """One replica's operations, in an order in which each finds its inputs."""
    firsts = scheme.first_layers(layers)
    packs = [range(a, e) for a, e in pairwise((*firsts, layers))]
    ahead = [range(a, e) for a, e in pairwise((*scheme.first_forward_layers(layers), layers))]
    seen = scheme.microbatches * (scheme.devices if scheme.pipeline else 1)

    def forward(p: int, i: int) -> Operation:
        span, device = ahead[p], scheme.forward_device(p, len(ahead)) if scheme.pipeline else 0
        there = {(SwapKind.ACTIVATIONS, span[-1] + 1, i)} if p + 1 < len(ahead) else set()
        away = scheme.pipeline and there and scheme.forward_device(p + 1, len(ahead)) != device and scheme.peer
        here: set[Key] = {(SwapKind.ACTIVATIONS, span[0], i)}
        stash: set[Key] = {(SwapKind.STASH, k, i) for k in span}
        weights: set[Key] = {(SwapKind.WEIGHTS, k, -1) for k in span}
        task = ("forward", p) if scheme.grouped else ("forward", p, i)
        return Operation(device, task, weights | here, stash | there, here, there if away else set())

    def backward(p: int, i: int) -> Operation:
        span, device = packs[p], scheme.backward_device(p, len(packs)) if scheme.pipeline else 0
        came: set[Key] = {(SwapKind.ACTIVATION_GRADIENTS, span[-1] + 1, i)} if p + 1 < len(packs) else set()
        goes: set[Key] = {(SwapKind.ACTIVATION_GRADIENTS, span[0], i)} if p else set()
        away = scheme.pipeline and goes and scheme.backward_device(p - 1, len(packs)) != device and scheme.peer
        stash: set[Key] = {(SwapKind.STASH, k, i) for k in span}
        weights: set[Key] = {(SwapKind.WEIGHTS, k, -1) for k in span}
        sums: set[Key] = {(SwapKind.GRADIENTS, k, -1) for k in span}
        task = ("backward", p) if scheme.grouped else ("backward", p, i)
        reads = weights | stash | came | (sums if i else set())
        return Operation(device, task, reads, sums | goes, stash | came, goes if away else set())

    def update(p: int) -> Operation:
        device = scheme.backward_device(p, len(packs)) if scheme.pipeline else 0
        kinds = [
            {(kind, k, -1) for k in packs[p]} for kind in (SwapKind.WEIGHTS, SwapKind.GRADIENTS, SwapKind.OPTIMIZER)
        ]
        task: tuple[object, ...] = ("update", p)
        if scheme.just_in_time:
            task = ("backward", p) if scheme.grouped else ("backward", p, seen - 1)
        return Operation(device, task, set().union(*kinds), kinds[0] | kinds[2], kinds[1])

    order, back = range(len(ahead)), range(len(packs) - 1, -1, -1)
    played = []
    if scheme.grouped:
        played += [forward(p, i) for p in order for i in range(seen)]
    for p in back if scheme.grouped else ():
        played += [backward(p, i) for i in range(seen)] + ([update(p)] if scheme.just_in_time else [])
    for i in range(0 if scheme.grouped else seen):
        played += [forward(p, i) for p in order]
        for p in back:
            played += [backward(p, i)] + ([update(p)] if scheme.just_in_time and i == seen - 1 else [])
    return played + ([] if scheme.just_in_time else [update(p) for p in range(len(packs))])


def count(layers: list[SwapLayer], scheme: Scheme, keeps: bool = False) -> dict[SwapKind, Volume]:
    """Bytes by kind.

    Arguments:
        keeps: True if tensors of a device's next operation stay even if it is another task (least recently used goes
            first).
    """
    host: Counter[SwapKind] = Counter()
    peer: Counter[SwapKind] = Counter()
    played = operations(len(layers), scheme)
    held: dict[int, set[Key]] = {op.device: set() for op in played}
    new: set[Key] = set()  # what the host does not have
    sent: set[Key] = set()
    later = {d: [op for op in played if op.device == d][1:] for d in held}

    def size(key: Key) -> float:
        kind, k, _ = key
        layer = layers[k]
        return {
            SwapKind.WEIGHTS: layer.weights_bytes, SwapKind.GRADIENTS: layer.gradients_bytes, SwapKind.OPTIMIZER: layer.optimizer_bytes,
            SwapKind.STASH: layer.stash_bytes,
        }.get(kind, layer.input_bytes)  # fmt: skip

    for op in played:
        mine = held[op.device]
        for key in op.reads - mine:
            if key in sent:
                sent.remove(key)
            else:
                assert key not in new, "read before it was written to the host"
                host[key[0]] += size(key)
        mine |= op.reads | op.makes
        new |= op.makes
        mine -= op.ends
        new -= op.ends
        then = later[op.device].pop(0) if later[op.device] else None
        stays = then.reads if then is not None and (keeps or then.task == op.task) else set()
        for key in mine - stays:
            if key in op.sends:
                peer[key[0]] += size(key)
                sent.add(key)
                new.discard(key)
            elif key in new or scheme.writes_clean:
                host[key[0]] += size(key)
                new.discard(key)
        mine &= stays
    assert not sent
    assert not new
    replicas = 1 if scheme.pipeline else scheme.devices
    return {kind: Volume(replicas * host[kind], replicas * peer[kind]) for kind in SwapKind}
