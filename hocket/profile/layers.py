"""From recorded operations to layers: which runs of operations are cut apart, and at what depth of the module tree.

Rules of this file: a layer is a run of operations in execution order, so that every tensor goes forward; all choices
follow from the record alone (floating point operations and bytes, never from times), so that every worker finds the
same layers; modules of one class at one depth are treated alike.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from hocket.profile.operations import LOSS, Node, Trace

# What moving one byte costs in floating point operations: the balance of common devices is between 5 and 20.
_FLOPS_PER_BYTE = 8.0


@dataclass
class Segment:
    """A layer in the making: `unit` is the module call that it is, -1 for operations between modules."""

    nodes: list[int]
    unit: int
    calls: list[int] = field(default_factory=list)


class Graph:
    """A trace without what nothing depends on, and with what is `fixed` known for good.

    Attributes:
        live: indices of the nodes that belong to layers, in execution order.
        fixed: for each value, whether it is the same for every microbatch of this size (computed once per stage).
    """

    def __init__(self, trace: Trace, owners: dict[str, tuple[str, ...]]) -> None:
        """`owners` gives for each module path the names of the buffers that it and its children hold."""
        self.trace = trace
        values, nodes = trace.values, trace.nodes
        self.fixed = [
            v.kind == "constant" or (v.kind == "buffer" and v.name not in trace.changed_buffers) for v in values
        ]
        is_fixed_node = []
        for node in nodes:
            steady = not isinstance(node.target, str) and not node.random and all(self.fixed[v] for v in node.reads)
            steady = steady and not any(values[v].kind == "buffer" for v, _ in node.aliases)
            is_fixed_node.append(steady)
            for value in node.writes:
                self.fixed[value] = steady
        needed = {trace.loss}
        live: set[int] = set()
        for index in range(len(nodes) - 1, -1, -1):
            node = nodes[index]
            effect = isinstance(node.target, str) and not trace.changed_buffers.isdisjoint(owners.get(node.target, ()))
            effect = effect or any(values[v].kind == "buffer" for v, _ in node.aliases)
            if effect or not needed.isdisjoint(node.writes):
                live.add(index)
                needed.update(node.reads)
                needed.update(before for before, _ in node.aliases)
        self.all_live = live
        self.live = [i for i in sorted(live) if not is_fixed_node[i]]
        self.cost = {i: nodes[i].flops + _FLOPS_PER_BYTE * nodes[i].moved_bytes for i in self.live}

    def producers(self, node: Node) -> set[int]:
        """Indices of the nodes whose results `node` reads, fixed ones left out."""
        found = {self.trace.values[v].node for v in node.reads if not self.fixed[v]}
        found |= {self.trace.values[v].node for v, _ in node.aliases if not self.fixed[v]}
        return found - {-1}

    def bonds(self) -> list[tuple[int, int]]:
        """Pairs of nodes between which no cut may fall: a view, and the change in place that another view shows."""
        out = []
        used = {v for i in self.live for v in self.trace.nodes[i].reads} | {self.trace.loss}
        for index in self.live:
            node = self.trace.nodes[index]
            if sum(1 for _, after in node.aliases if after in used) and len(node.aliases) > 1:
                makers = sorted(self.trace.values[before].node for before, _ in node.aliases)
                if makers[1] >= 0:
                    out.append((makers[1], index))
        return out


def choose(graph: Graph, max_layers: int) -> frozenset[str]:
    """Which modules are looked into: the costliest first, all of a class and depth at once, while layers are few."""
    trace = graph.trace
    cost = [0.0] * len(trace.calls)
    for index in graph.live:
        inner = trace.nodes[index].call
        while inner >= 0:
            cost[inner] += graph.cost[index]
            inner = trace.calls[inner].parent
    parents = {c.parent for c in trace.calls}
    expanded = frozenset({""})
    rejected: set[tuple[str, int]] = set()
    least = cost[0] / (2 * max_layers)
    while True:
        groups: dict[tuple[str, int], list[int]] = {}
        for k, call in enumerate(trace.calls):
            inside = k in parents and call.path not in expanded and call.path != LOSS
            if inside and trace.calls[call.parent].path in expanded:
                groups.setdefault((call.kind, call.path.count(".")), []).append(k)
        best = max(
            (
                (trace.calls[ks[0]].container, max(cost[k] for k in ks), key)
                for key, ks in groups.items()
                if key not in rejected and (trace.calls[ks[0]].container or max(cost[k] for k in ks) >= least)
            ),
            default=None,
        )
        if best is None:
            return expanded
        wider = expanded | {trace.calls[k].path for k in groups[best[2]]}
        if len(_segments(graph, wider)) <= max_layers:
            expanded = wider
        else:
            rejected.add(best[2])


def group(graph: Graph, expanded: Collection[str], max_layers: int) -> list[Segment]:
    """The layers, in execution order."""
    segments = _segments(graph, expanded)
    while len(segments) > max_layers:
        weights = [sum(graph.cost[i] for i in s.nodes) for s in segments]
        k = min(range(len(segments) - 1), key=lambda j: weights[j] + weights[j + 1])
        segments[k : k + 2] = [_joined(segments[k], segments[k + 1])]
    return segments


def _joined(first: Segment, second: Segment) -> Segment:
    return Segment(first.nodes + second.nodes, first.unit, first.calls + second.calls)


def _segments(graph: Graph, expanded: Collection[str]) -> list[Segment]:
    trace = graph.trace
    segments: list[Segment] = []
    ancestors: list[int] = []  # a bit for each earlier segment that this one depends on
    home: dict[int, int] = {}
    for index in graph.live:
        node = trace.nodes[index]
        unit = _unit(trace, node.call, expanded)
        sources = 0
        for producer in graph.producers(node):
            sources |= 1 << home[producer]
        last = len(segments) - 1
        if last >= 0 and unit >= 0:
            joins = segments[last].unit == unit
        elif last >= 0:
            # Operations between modules belong to what came before, unless that would hide a branch or a join.
            own = 1 << last
            joins = not sources & ~own & ~ancestors[last] and (bool(sources & own) or not sources)
        else:
            joins = False
        if joins:
            segments[last].nodes.append(index)
        else:
            last += 1
            segments.append(Segment([index], unit, [unit] if unit >= 0 else []))
            ancestors.append(0)
        home[index] = last
        reach = sources
        for k in range(last):
            if sources >> k & 1:
                reach |= ancestors[k]
        ancestors[last] |= reach & ~(1 << last)
    return _bonded(graph, _with_next(graph, segments))


def _unit(trace: Trace, call: int, expanded: Collection[str]) -> int:
    """The outermost call around an operation that is not looked into, -1 when all are."""
    found = -1
    while call >= 0:
        if trace.calls[call].path not in expanded:
            found = call
        call = trace.calls[call].parent
    return found


def _with_next(graph: Graph, segments: list[Segment]) -> list[Segment]:
    """Operations between modules that only the module after them uses become a part of it."""
    home = {i: k for k, s in enumerate(segments) for i in s.nodes}
    readers: list[set[int]] = [set() for _ in segments]
    for k, segment in enumerate(segments):
        for index in segment.nodes:
            for producer in graph.producers(graph.trace.nodes[index]):
                readers[home[producer]].add(k)
    out: list[Segment] = []
    waiting: Segment | None = None
    for k, segment in enumerate(segments):
        if waiting is not None:
            segment = Segment(waiting.nodes + segment.nodes, segment.unit, segment.calls)
        only_next = segment.unit < 0 and readers[k] - {k} == {k + 1}
        waiting = segment if only_next else None
        if waiting is None:
            out.append(segment)
    return out


def _bonded(graph: Graph, segments: list[Segment]) -> list[Segment]:
    for first, second in graph.bonds():
        home = {i: k for k, s in enumerate(segments) for i in s.nodes}
        a, b = home.get(first), home[second]
        if a is not None and a < b:
            whole = segments[a]
            for segment in segments[a + 1 : b + 1]:
                whole = _joined(whole, segment)
            segments[a : b + 1] = [whole]
    return segments


def name_of(graph: Graph, segment: Segment, taken: dict[str, int]) -> str:
    """A unique name: the module's path, or its parent's path and the first operation's name."""
    trace = graph.trace
    paths = [trace.calls[c].path for c in segment.calls]
    if not paths:
        node = trace.nodes[segment.nodes[0]]
        paths = [f"{trace.calls[node.call].path}.{node.label}".strip(".") or "model"]
    name = paths[0] if len(paths) == 1 else f"{paths[0]}..{paths[-1]}"
    name = "loss" if name == LOSS else name or "model"
    taken[name] = taken.get(name, 0) + 1
    return name if taken[name] == 1 else f"{name}#{taken[name]}"
