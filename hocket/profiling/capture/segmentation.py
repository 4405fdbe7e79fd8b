"""Segmentation of recorded operations into consecutive layers.

Rules of this file: a layer is a run of operations in execution order, so that every tensor goes forward. All choices
follow from the record alone (floating point operations and bytes, never times), so that every worker finds the same
layers. Modules of one class at one depth are treated in the same way.
"""

import re
from dataclasses import dataclass, replace

from hocket.errors import CaptureError
from hocket.profiling.capture.recorded_graph import LOSS, RecordedGraph, RecordedOperation
from hocket.profiling.job.derived_model.subtasks import Subtask
from hocket.profiling.tensor_parallel.sequence_parallel import enter, leave

# Cost of moving one byte, in floating point operations: common devices balance between 5 and 20.
_FLOPS_PER_BYTE = 8.0


@dataclass
class LayerDraft:
    """Operations that may become a layer, alone or joined with neighbours.

    Attributes:
        nodes: indices of its operations.
        calls: indices of the module calls that it consists of.
        path: path of the module; without one, path of the surrounding module with the name of the first operation.
        kind: class of the module; without one, name of the first operation.
    """

    nodes: list[int]
    calls: list[int]
    path: str
    kind: str


class LiveGraph:
    """A recorded graph without unused operations, with fixed values determined.

    Attributes:
        live: indices of the operations that belong to layers, in execution order.
        fixed: for each value, True if it is the same for every microbatch of this size. A stage computes such a value
            once.
        cost: estimated work of each live operation, in floating-point operations.
        backward: indices of the operations through which gradients of the loss flow.
    """

    def __init__(self, trace: RecordedGraph, owners: dict[str, tuple[str, ...]]) -> None:
        """Find live operations and fixed values of a recorded graph.

        Arguments:
            owners: for each module path, names of the buffers that the module and its children hold.

        Raises:
            CaptureError: the model changes a tensor in place that is neither a parameter nor a buffer.
        """
        self.trace = trace
        values, nodes = trace.values, trace.nodes
        dirty: set[int] = set()
        while True:
            is_fixed_node = self._find_fixed(dirty)
            # Values in storages that layers write to must be recomputed in each run.
            written = {s for node, steady in zip(nodes, is_fixed_node, strict=True) if not steady for s in node.mutates}
            if written <= dirty:
                break
            dirty |= written
        for value in values:
            if value.kind == "constant" and value.storage in dirty:
                found = f"a tensor of shape {value.shape} modified in place that is neither parameter nor buffer"
                raise CaptureError("model", found, "state in registered buffers", "Use register_buffer for it.")
        # By storage: the second write to a buffer changes the result of the first one.
        self._kept = {v.name: v.storage for v in values if v.kind == "buffer" and v.name in trace.changed_buffers}
        self._owners = owners
        kept = set(self._kept.values())
        needed = {trace.loss}
        live: set[int] = set()
        for index in range(len(nodes) - 1, -1, -1):
            node = nodes[index]
            effect = isinstance(node.target, str) and not trace.changed_buffers.isdisjoint(owners.get(node.target, ()))
            effect = effect or not kept.isdisjoint(node.mutates)
            if effect or not needed.isdisjoint(node.writes):
                live.add(index)
                needed.update(node.reads)
                needed.update(before for before, _ in node.aliases)
        self.live = [i for i in sorted(live) if not is_fixed_node[i]]
        self.backward = self._find_backward()
        self.cost = {i: nodes[i].flops + _FLOPS_PER_BYTE * nodes[i].moved_bytes for i in self.live}

    def _find_backward(self) -> frozenset[int]:
        """Indices of the operations through which gradients of the loss flow."""
        values, wanted, found = self.trace.values, {self.trace.loss}, set()
        for index in range(len(self.trace.nodes) - 1, -1, -1):
            node = self.trace.nodes[index]
            if any(v in wanted and values[v].requires_grad for v in node.writes):
                found.add(index)
                wanted.update((*node.reads, *(before for before, _ in node.aliases)))
        return frozenset(found)

    def _find_fixed(self, dirty: set[int]) -> list[bool]:
        """Tell for each operation whether it is fixed, and set `fixed` for the values.

        Arguments:
            dirty: storages that operations of layers write to.
        """
        values, changed = self.trace.values, self.trace.changed_buffers
        self.fixed = [v.kind == "constant" or (v.kind == "buffer" and v.name not in changed) for v in values]
        nodes = []
        for node in self.trace.nodes:
            steady = not isinstance(node.target, str) and not node.random and all(self.fixed[v] for v in node.reads)
            steady = steady and not any(values[v].kind == "buffer" for v, _ in node.aliases)
            steady = steady and not any(values[v].storage in dirty for v in node.writes)
            nodes.append(steady)
            for value in node.writes:
                self.fixed[value] = steady
        return nodes

    def producers(self, node: RecordedOperation) -> set[int]:
        """Return the indices of the operations that compute the inputs of `node`.

        Fixed operations are left out.
        """
        found = {self.trace.values[v].node for v in node.reads if not self.fixed[v]}
        found |= {self.trace.values[v].node for v, _ in node.aliases if not self.fixed[v]}
        return found - {-1}

    def bonds(self) -> list[tuple[int, int]]:
        """Pairs of operations that must be in one layer, by index.

        A view and an in-place change that shows in it stay together. So do the operations that use a written buffer:
        each stage has its own copy of a buffer, so another stage would not read the written value.
        """
        out = self._buffer_bonds()
        used = {v for i in self.live for v in self.trace.nodes[i].reads} | {self.trace.loss}
        for index in self.live:
            node = self.trace.nodes[index]
            if sum(1 for _, after in node.aliases if after in used) and len(node.aliases) > 1:
                makers = sorted(self.trace.values[before].node for before, _ in node.aliases)
                if makers[1] >= 0:
                    out.append((makers[1], index))
        return out

    def _buffer_bonds(self) -> list[tuple[int, int]]:
        """Indices of the first and last operation that uses each written buffer."""
        if not self._kept:
            return []
        values, kept, ends = self.trace.values, set(self._kept.values()), dict[int, tuple[int, int]]()
        for index in self.live:
            node = self.trace.nodes[index]
            used = {values[v].storage for v in (*node.reads, *node.writes)} | node.mutates
            if isinstance(node.target, str):
                used |= {self._kept[name] for name in self._owners.get(node.target, ()) if name in self._kept}
            for storage in used & kept:
                ends[storage] = (ends.get(storage, (index, index))[0], index)
        return sorted({pair for pair in ends.values() if pair[0] < pair[1]})


def pieces(graph: LiveGraph) -> list[LayerDraft]:
    """Cut a graph into the finest layers.

    A finest layer is a module without children, or the operations between two modules.
    """
    trace = graph.trace
    segments: list[LayerDraft] = []
    ancestors: list[int] = []  # one bit for each earlier segment that the segment depends on
    home: dict[int, int] = {}
    waiting: list[int] = []
    for index in graph.live:
        node = trace.nodes[index]
        if node.target in (enter, leave):
            # An undivided model has no `enter` and `leave`, so they form no layers: a divided model has the layers of
            # the undivided one. `enter` ends the layer before it, `leave` begins the layer after it. Tensors between
            # such layers are slices.
            home[index] = home[max(graph.producers(node))]
            if node.target is enter:
                segments[home[index]].nodes.append(index)
            else:
                waiting.append(index)
            continue
        unit = _unit(trace, node)
        sources = 0
        for producer in graph.producers(node):
            sources |= 1 << home[producer]
        last = len(segments) - 1
        if last >= 0 and not node.writes:  # writes only buffers: as a separate layer it would have no output
            joins = True
        elif last >= 0 and unit >= 0:
            joins = segments[last].calls == [unit]
        elif last >= 0:
            # Operations between modules belong to the layer before, unless that would hide a branch or a join.
            own = 1 << last
            joins = not sources & ~own & ~ancestors[last] and (bool(sources & own) or not sources)
        else:
            joins = False
        if joins:
            segments[last].nodes.append(index)
        else:
            last += 1
            segments.append(_begun(trace, index, unit))
            ancestors.append(0)
        for before in graph.producers(node).intersection(waiting):
            segments[last].nodes.insert(-1, before)
            waiting.remove(before)
            home[before] = last
        home[index] = last
        reach = sources
        for k in range(last):
            if sources >> k & 1:
                reach |= ancestors[k]
        ancestors[last] |= reach & ~(1 << last)
    return _bonded(graph, _with_next(graph, segments))


def _unit(trace: RecordedGraph, node: RecordedOperation) -> int:
    """Index of the module call that an operation belongs to; -1 between modules.

    This is the call of the operation's module, of the loss around it, or of a module that is kept in one layer.
    """
    call, unit = node.call, node.call if isinstance(node.target, str) else -1
    while call >= 0:
        if trace.calls[call].path == LOSS:
            return call
        unit = call if trace.calls[call].as_one else unit
        call = trace.calls[call].parent
    return unit


def _begun(trace: RecordedGraph, index: int, unit: int) -> LayerDraft:
    if unit >= 0:
        path = trace.calls[unit].path
        return LayerDraft([index], [unit], "loss" if path == LOSS else path or "model", trace.calls[unit].kind)
    node = trace.nodes[index]
    return LayerDraft([index], [], f"{trace.calls[node.call].path}.{node.label}".strip("."), node.label)


def _with_next(graph: LiveGraph, segments: list[LayerDraft]) -> list[LayerDraft]:
    """Join some segments to the segment that follows each of them.

    Two kinds are joined: operations between modules with results that only the next segment reads; and segments that
    only write buffers.
    """
    home = {i: k for k, s in enumerate(segments) for i in s.nodes}
    readers: list[set[int]] = [set() for _ in segments]
    for k, segment in enumerate(segments):
        for index in segment.nodes:
            for producer in graph.producers(graph.trace.nodes[index]):
                readers[home[producer]].add(k)
    out: list[LayerDraft] = []
    waiting: LayerDraft | None = None
    for k, segment in enumerate(segments):
        if waiting is not None:
            segment = replace(segment, nodes=waiting.nodes + segment.nodes)
        only_buffers = not any(graph.trace.nodes[i].writes for i in segment.nodes) and k + 1 < len(segments)
        only_next = only_buffers or (not segment.calls and readers[k] - {k} == {k + 1})
        waiting = segment if only_next else None
        if waiting is None:
            out.append(segment)
    return out


def _bonded(graph: LiveGraph, segments: list[LayerDraft]) -> list[LayerDraft]:
    for first, second in graph.bonds():
        home = {i: k for k, s in enumerate(segments) for i in s.nodes}
        a, b = home.get(first), home[second]
        if a is not None and a < b:
            segments[a : b + 1] = [joined(segments[a : b + 1])]
    return segments


def joined(segments: list[LayerDraft]) -> LayerDraft:
    """Join consecutive segments into one."""
    if len(segments) == 1:
        return segments[0]
    nodes = [i for s in segments for i in s.nodes]
    calls = [c for s in segments for c in s.calls]
    kinds = dict.fromkeys(kind for s in segments for kind in s.kind.split("+"))
    return LayerDraft(nodes, calls, f"{segments[0].path}..{segments[-1].path}", "+".join(kinds))


def choose(graph: LiveGraph, segments: list[LayerDraft], max_layers: int) -> tuple[int, ...]:
    """Choose the number of segments in each layer, for at most `max_layers` layers.

    Neighbours are joined step by step. One step joins all pairs of the same kinds of modules. Pairs are ordered by
    these rules:

    1. Layers of more than four times the mean cost, subtasks and the loss come last.
    2. Joins that hide neither a branch nor a join of the graph come first.
    3. The deepest pairs in the module tree come first.
    4. The cheapest pairs come first.
    """
    counts = [1] * len(segments)
    segments = list(segments)
    mean = sum(graph.cost.values()) / max_layers
    while len(segments) > max_layers:
        readers, sources, ancestors = _links(graph, segments)
        cost = [sum(graph.cost[i] for i in s.nodes) for s in segments]
        classes: dict[tuple[str, str, bool], list[int]] = {}
        for k in range(len(segments) - 1):
            chain = readers[k] == {k + 1} and not (sources[k + 1] - {k}) - ancestors[k]
            classes.setdefault((_pattern(segments[k]), _pattern(segments[k + 1]), chain), []).append(k)
        best = min(
            classes,
            key=lambda c: (
                max(cost[k] + cost[k + 1] for k in classes[c]) > 4 * mean or c[1].startswith("loss:") or _subtasks(c),
                not c[2],
                -max(_common(segments[k], segments[k + 1]) for k in classes[c]),
                max(cost[k] + cost[k + 1] for k in classes[c]),
                classes[c],
            ),
        )
        taken = -1
        pairs = []
        for k in classes[best]:
            if k > taken:
                pairs.append(k)
                taken = k + 1
        for k in reversed(pairs):
            segments[k : k + 2] = [joined(segments[k : k + 2])]
            counts[k : k + 2] = [counts[k] + counts[k + 1]]
    return tuple(counts)


def _links(graph: LiveGraph, segments: list[LayerDraft]) -> tuple[list[set[int]], list[set[int]], list[set[int]]]:
    """Indices of each segment's readers, direct sources and all sources upstream."""
    home = {i: k for k, s in enumerate(segments) for i in s.nodes}
    readers: list[set[int]] = [set() for _ in segments]
    sources: list[set[int]] = [set() for _ in segments]
    ancestors: list[set[int]] = []
    for k, segment in enumerate(segments):
        sources[k] = {home[p] for i in segment.nodes for p in graph.producers(graph.trace.nodes[i])} - {k}
        ancestors.append(sources[k].union(*(ancestors[j] for j in sources[k])))
        for j in sources[k]:
            readers[j].add(k)
    return readers, sources, ancestors


def _pattern(segment: LayerDraft) -> str:
    """Key shared by equal layers of repeated blocks."""
    return re.sub(r"\d+", "*", segment.path) + ":" + segment.kind


def _subtasks(patterns: tuple[str, str, bool]) -> bool:
    """True if a join would merge two subtasks of a divided layer."""
    return all(Subtask.__name__ in pattern.rpartition(":")[2].split("+") for pattern in patterns[:2])


def _common(first: LayerDraft, second: LayerDraft) -> int:
    """Depth of the innermost module that contains both segments."""
    a, b = first.path.split("..")[0].split("."), second.path.split("..")[-1].split(".")
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def group(segments: list[LayerDraft], counts: tuple[int, ...]) -> list[LayerDraft]:
    """Join consecutive segments into layers, with unique names.

    A layer that is exactly one module gets the module's name.

    Arguments:
        counts: number of segments in each layer.
    """
    layers, start = [], 0
    for count in counts:
        members = segments[start : start + count]
        layer = joined(members)
        if count > 1:
            parts = [m.path.split("..")[0].split(".") for m in members]
            depth = next((d for d, names in enumerate(zip(*parts, strict=False)) if len(set(names)) > 1), 0)
            around = ".".join(parts[0][:depth])
            outside = segments[:start] + segments[start + count :]
            if around and not any(f"{s.path}.".startswith(f"{around}.") for s in outside):
                layer = replace(layer, path=around)
        layers.append(layer)
        start += count
    taken: dict[str, int] = {}
    for k, layer in enumerate(layers):
        taken[layer.path] = taken.get(layer.path, 0) + 1
        if taken[layer.path] > 1:
            layers[k] = replace(layer, path=f"{layer.path}#{taken[layer.path]}")
    return layers
