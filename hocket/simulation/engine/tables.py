"""Flat arrays for kernel.py, from a lowered program, costs and repetitions.

The cost model is called once for each signature and number of samples, never for each node.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hocket.cost.contention import Resource, Sharing, Use, capacity
from hocket.cost.model import CostModel
from hocket.program.instruction import COLLECTIVES, Instruction, Kind, computes
from hocket.program.program import Program
from hocket.simulation.engine.kernel import AT_ONCE, BEGINS, COMPUTES, FINISHES, SENDS
from hocket.simulation.engine.lower import Skeleton
from hocket.simulation.engine.nodes import PERIOD, Signature


@dataclass(frozen=True)
class NodeLayout:
    """Numbering of a run's nodes: prologue, `repeats` periods, epilogue.

    It has structure only, without costs.

    Attributes:
        skeleton: the lowered program.
        repeats: repetitions of the period; 0 if the lowered program is the whole run unrolled.
        asked: repetitions of the period that the caller of the simulation gave.
    """

    program: Program
    skeleton: Skeleton
    repeats: int
    asked: int

    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        """Number of nodes of prologue, period and epilogue."""
        prologue, period, epilogue = (len(part.signature) for part in self.skeleton.parts)
        return prologue, period, epilogue

    @property
    def nodes(self) -> int:
        """Number of nodes of the whole run."""
        prologue, period, epilogue = self.sizes
        return prologue + self.repeats * period + epilogue

    def number(self, place: tuple[int, int, int]) -> int:
        """Number of a node in the run.

        Arguments:
            place: part of the program, index of the node in the part, and repetition of the period. Negative
                repetitions count from the end.
        """
        part, node, repetition = place
        prologue, period, _ = self.sizes
        if part == PERIOD:
            return prologue + (repetition % self.repeats) * period + node
        return node if part < PERIOD else prologue + self.repeats * period + node

    @cached_property
    def structure(self) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...], np.ndarray]:
        """Nodes and edges as arrays.

        Returns:
            - Templates: signature, lane, index and moves (`ProgramPart`) of the nodes of prologue, one period and
              epilogue.
            - Edges. Those inside the period are compressed rows: pointer by node of the period, distance to the
              successor's number, posts. All others are linked lists: head by node of the run, next edge, successor,
              posts. The last array has the receives that are posted before the start.
            - Number of edges to each node of the run.
        """
        skeleton, (prologue, period, _) = self.skeleton, self.sizes
        columns = zip(*((part.signature, part.lane, part.index, part.moves) for part in skeleton.parts), strict=True)
        node = tuple(np.array([x for own in column for x in own], dtype=np.int64) for column in columns)
        source, target, later, posts = (
            (np.array(c, dtype=np.int64) for c in zip(*skeleton.inside, strict=True))
            if skeleton.inside
            else (np.zeros(0, dtype=np.int64),) * 4
        )
        # Of the nodes that one node lets start, sends come first. A send without duration then ends before the next
        # instruction begins.
        sends = np.array([signature.members[0].kind is Kind.SEND for signature in skeleton.signatures], dtype=np.bool_)
        send_at = sends[node[0]]
        order = np.lexsort((~send_at[prologue + target], source)) if period else source
        source, target, later, posts = (column[order] for column in (source, target, later, posts))
        t_ptr = np.concatenate(([0], np.cumsum(np.bincount(source, minlength=period))))
        t_step = target - source + later * period
        waits = np.zeros(self.nodes, dtype=np.int64)
        if period:
            inside = waits[prologue : prologue + self.repeats * period].reshape(self.repeats, period)
            inside += np.bincount(target, minlength=period)
            for r in range(min(self.repeats, int(later.max(initial=0)))):
                np.subtract.at(inside[r], target[later > r], 1)
        x_head = np.full(self.nodes, -1, dtype=np.int64)
        count = len(skeleton.between)
        x_next, x_to = np.full(count, -1, dtype=np.int64), np.zeros(count, dtype=np.int64)
        x_posts = np.array([posts for _, _, posts in skeleton.between], dtype=np.bool_)
        starts = (0, prologue, prologue + period)
        late = [not send_at[starts[second[0]] + second[1]] for _, second, _ in skeleton.between]
        for k in sorted(range(count), key=lambda k: (late[k], k), reverse=True):
            first, second, _ = skeleton.between[k]
            number = self.number(first)
            x_to[k] = self.number(second)
            x_next[k], x_head[number] = x_head[number], k
        np.add.at(waits, x_to, 1)
        first_posts = np.array([self.number(place) for place in skeleton.first_posts], dtype=np.int64)
        return node, (t_ptr, t_step, posts.astype(np.bool_), x_head, x_next, x_to, x_posts, first_posts), waits


def size_classes(skeleton: Skeleton, costs: CostModel) -> tuple[list[int], list[tuple[int, ...]], np.ndarray]:
    """Classes of microbatches with equal numbers of samples.

    Returns:
        - Numbers of merged microbatches that instructions have, ascending.
        - For each class and each of these numbers, the samples of so many microbatches.
        - The class of each microbatch of a batch.
    """
    merged = [1]
    if any(cut.merged > 1 for cut in costs.cuts):
        merged = sorted({1, *(costs.merged_in(signature.members[0]) for signature in skeleton.signatures)})
    sizes = [tuple(costs.samples_from(m, many) for many in merged) for m in range(len(costs.samples))]
    kinds = sorted(set(sizes))
    return merged, kinds, np.array([kinds.index(size) for size in sizes], dtype=np.int64)


def fraction(signature: Signature, costs: CostModel, samples: int) -> float:
    """Fraction of an instruction's seconds that one of its nodes takes.

    It is 1 unless the node is a part of a backward.
    """
    if signature.first_bucket < 0 and signature.last_bucket < 0:
        return 1.0
    ready = costs.ready_fractions(signature.members[0].stage, samples)
    start = ready[signature.first_bucket] if signature.first_bucket >= 0 else 0.0
    return (ready[signature.last_bucket] if signature.last_bucket >= 0 else 1.0) - start


def cost_tables(skeleton: Skeleton, costs: CostModel) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Costs of nodes by signature and number of samples.

    Returns:
        size_class: size class of every microbatch of a batch (`size_classes`).
        tables: (work_s, latency_s, hold_bytes, hold_device, op_ptr, op_device, op_bytes, post_device, post_bytes,
            role). An entry for signature s and class k is at s * classes + k; latency, devices and role are at s.
            Bytes are changes of a device's memory: `op` when the node ends (for sends see `role`), `hold` when it
            starts, `post` when its receive is posted. Changes of `op` for signature s are at op_ptr[s] to
            op_ptr[s + 1] - 1. `role` is explained in kernel.py.
    """
    merged, kinds, size_class = size_classes(skeleton, costs)
    apart = merged != [1]
    count, classes = len(skeleton.signatures), len(kinds)
    work, hold, post = (np.zeros((count, classes)) for _ in range(3))
    latency = np.zeros(count)
    hold_device, post_device = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    op_ptr, op_device, op_bytes = [0], [], []
    role = np.zeros(count, dtype=np.int64)
    memory, known = costs.memory, dict[object, tuple[float, float]]()
    for s, signature in enumerate(skeleton.signatures):
        one = signature.members[0]
        if one.kind is Kind.SEND:
            role[s] = AT_ONCE if costs.at_once(one) else SENDS
        elif computes(one.lane) and signature.last_bucket < 0:
            role[s] = COMPUTES if signature.first_bucket < 0 else FINISHES
        elif computes(one.lane) and signature.first_bucket < 0:
            role[s] = BEGINS
        changes: dict[int, list[float]] = {}
        for k, size in enumerate(kinds):
            samples = size[merged.index(costs.merged_in(one))] if apart else size[0]
            latency_s, flow_s = costs.transfer(one, samples)
            latency[s] = latency_s
            work[s, k] = flow_s + costs.seconds(one, samples) * fraction(signature, costs, samples)
            for member, cost_key in zip(signature.members, skeleton.cost_keys[s], strict=True):
                # Replicas have equal costs. With merged microbatches they do not, because it depends on the device
                # which pieces of a border stay on it.
                key = (cost_key, samples, member.device if apart else -1)
                if key not in known:
                    known[key] = memory.net_bytes(member, samples, False), memory.hold_bytes(member, samples, False)
                net, held = known[key]
                if member.kind is Kind.RECEIVE:
                    post_device[s], post[s, k] = member.device, net
                    continue
                if member.kind not in COLLECTIVES:
                    hold_device[s] = member.device
                    hold[s, k] = held if signature.first_bucket < 0 else 0.0
                    net = net - held if signature.last_bucket < 0 else 0.0
                changes.setdefault(member.device, [0.0] * classes)[k] += net
        for device, amounts in changes.items():
            if any(amounts):
                op_device.append(device)
                op_bytes.append(amounts)
        op_ptr.append(len(op_device))
    operations = np.array(op_bytes, dtype=float).reshape(len(op_device), classes)
    return size_class, (
        work.ravel(),
        latency,
        hold.ravel(),
        hold_device,
        np.array(op_ptr, dtype=np.int64),
        np.array(op_device, dtype=np.int64),
        operations.ravel(),
        post_device,
        post.ravel(),
        role,
    )


def use_tables(skeleton: Skeleton, costs: CostModel) -> tuple[np.ndarray, ...]:
    """Use of shared resources, without resources that can never be short.

    Returns:
        - use_ptr, use_resource, use_load, use_sharing: uses of signature s are at use_ptr[s] to use_ptr[s + 1] - 1.
          Each has a resource, a load, and its effect on the rate (`Sharing`).
        - share_ptr, share_lane: the lanes that resource r may slow down are at share_ptr[r] to share_ptr[r + 1] - 1.
        - capacity of each resource.
    """
    lanes: list[set[int]] = [set() for _ in skeleton.signatures]
    for part in skeleton.parts:
        for kind, lane in set(zip(part.signature, part.lane, strict=True)):
            lanes[kind].add(lane)
    known: dict[object, tuple[Use, ...]] = {}
    uses: list[tuple[Use, ...]] = []
    together: dict[int, set[int]] = {}  # lanes of the signatures with the same uses, by identity: rings have hundreds
    for signature, own in zip(skeleton.signatures, lanes, strict=True):
        key = _alike(signature.members[0])
        if key not in known:
            known[key] = costs.uses(signature.members[0])
        uses.append(known[key])
        together.setdefault(id(known[key]), set()).update(own)
    apart = {id(found): found for found in uses}
    most: dict[Any, dict[int, float]] = {}  # the largest load by lane, of each resource
    for at, found in apart.items():
        for use in found:
            of_lane = most.setdefault(use.resource, {})
            for lane in together[at]:
                of_lane[lane] = max(of_lane.get(lane, 0.0), use.load)
    short = _unlike(
        [r for r, of_lane in most.items() if sum(of_lane.values()) > capacity(costs.cluster, r)], apart, costs
    )
    number = {resource: k for k, resource in enumerate(short)}
    shares: list[set[int]] = [set() for _ in short]
    scarce = {at: [use for use in found if use.resource in number] for at, found in apart.items()}
    use_ptr, resources, loads, sharing = [0], [], [], []
    for found, own in zip(uses, lanes, strict=True):
        for use in scarce[id(found)]:
            resources.append(number[use.resource])
            loads.append(use.load)
            sharing.append(int(use.sharing))
            if use.sharing is not Sharing.NOT:
                shares[number[use.resource]] |= own
        use_ptr.append(len(resources))
    return (
        np.array(use_ptr, dtype=np.int64),
        np.array(resources, dtype=np.int64),
        np.array(loads, dtype=float),
        np.array(sharing, dtype=np.int64),
        np.concatenate(([0], np.cumsum([len(own) for own in shares]))).astype(np.int64),
        np.array([lane for own in shares for lane in sorted(own)], dtype=np.int64),
        np.array([capacity(costs.cluster, r) for r in short], dtype=float),
    )


def _unlike(short: Sequence[Resource], uses: Mapping[int, Sequence[Use]], costs: CostModel) -> list[Resource]:
    """Return one of all resources that have the same users with the same loads, such as the links of a ring.

    They are always equally short, and a rate depends on the shortest resource.

    Arguments:
        uses: different sets of uses, by any number.
    """
    users: dict[Resource, list[object]] = {resource: [capacity(costs.cluster, resource)] for resource in short}
    for number, found in uses.items():
        for use in found:
            if use.resource in users:
                users[use.resource].append((number, use.load, use.sharing))
    return list({tuple(own): resource for resource, own in reversed(users.items())}.values())[::-1]


def _alike(i: Instruction) -> object:
    """Key that is equal for instructions that use the same resources."""
    if i.kind is Kind.SEND:
        return i.kind, i.device, i.peer, i.reads[0].copy
    if i.kind in COLLECTIVES:
        value = i.reads[0]
        return i.kind, i.group, value.what, value.stage, value.part
    return i.kind, i.device
