"""Reader of PipeDream's profiles: `graph.txt`, a graph of operators with costs.

Format (msr-fiddle/pipedream, graph/), with times in milliseconds and sizes in bytes: node lines
`id -- description -- forward_compute_time=MS, backward_compute_time=MS, activation_size=BYTES, parameter_size=BYTES`,
then edge lines, a tab and `id -- id`. An operator with several outputs has `activation_size=[a; b]`.

Conventions of the import:
- `Input` nodes are the batch. Their time is data loading, so they become tensors of the batch, not layers.
- Sinks named `__getitem__` are unused outputs and are dropped.
- The figures are for one minibatch. The file does not contain its size: see `_pipedream_samples.py`, or `samples`. If
  the size is unknown it is 1 (a "sample" is then a whole minibatch), and a note of the profile says so.
- The file does not say what the backward keeps. A layer's stash is its own output, which its readers' backward needs.
- The file does not contain the optimizer state. It is `optimizer_copies` times the weights (1: momentum).
"""

import heapq
import re
from dataclasses import dataclass
from pathlib import Path

from hocket.errors import InputError
from hocket.profiling.layer import Layer, Tensor
from hocket.profiling.profile import ModelProfile
from hocket.profiling.readers._lines import lines, number
from hocket.profiling.readers._pipedream_samples import samples_of

KEYS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
MAX_NODES = 100_000


@dataclass(frozen=True)
class _Node:
    name: str
    description: str
    forward_s: float
    backward_s: float
    outputs_bytes: tuple[float, ...]
    weights_bytes: float

    @property
    def out_bytes(self) -> float:
        return sum(self.outputs_bytes)


def read(
    path: str | Path,
    *,
    samples: int | None = None,
    device_type: str = "v100-16gb",
    optimizer_copies: float = 1.0,
) -> ModelProfile:
    """Read the profile in one `graph.txt`.

    Layers are in Kahn's order, with the smallest ready node number first.

    Arguments:
        samples: batch size with which the profile was measured. By default it is inferred from the sizes of operators,
            or is 1 if that is not possible.
        device_type: device type of the measurement (the published profiles: one V100).
        optimizer_copies: optimizer state as a multiple of the weights.

    Raises:
        InputError: a malformed line (with its number), an unknown node, a cycle, or no layers.
    """
    nodes, edges = _parse(path)
    if samples is not None and samples < 1:
        raise InputError("samples", str(samples), "the batch size with which the profile was measured, >= 1")
    batch, why = samples_of(((n.description, n.outputs_bytes) for n in nodes.values()), _name(path), samples)
    targets: dict[str, set[str]] = {name: set() for name in nodes}
    for source, target in edges:
        targets[source].add(target)
    order = _kahn(path, nodes, targets)
    unread = {n for n in order if not targets[n] and nodes[n].description.startswith("__getitem__")}
    inputs = [n for n in order if nodes[n].description.startswith("Input")]
    kept = [n for n in order if n not in unread and n not in inputs]
    if not kept:
        raise InputError(str(path), "no layers", "at least one node that is not an Input")
    index = {name: i for i, name in enumerate(kept)}
    return ModelProfile(
        name=_name(path),
        device_type=device_type,
        microbatch_sizes=(batch,),
        layers=tuple(_layer(nodes[n], optimizer_copies) for n in kept),
        tensors=tuple(
            Tensor(n, index.get(n, -1), read_by, (nodes[n].out_bytes,), gradient=n in index)
            for n in [*inputs, *kept]
            if (read_by := tuple(sorted(index[t] for t in targets[n] if t in index)))
        ),
        source="PipeDream graph.txt",
        notes=(why, "stash_bytes is each layer's own output", f"optimizer_bytes is {optimizer_copies:g} x weights"),
    )


def _name(path: str | Path) -> str:
    """Name of the model: the file's name, or the folder's name for a `graph.txt`."""
    stem = Path(path).name.removesuffix(".gz").removesuffix(".txt").removesuffix(".graph")
    return (Path(path).resolve().parent.name or stem) if stem == "graph" else stem


def _layer(node: _Node, optimizer_copies: float) -> Layer:
    return Layer(
        name=node.name,
        kind=re.split(r"[(\s]", node.description, maxsplit=1)[0] or "operator",
        forward_s=(node.forward_s,),
        backward_s=(node.backward_s,),
        stash_bytes=(node.out_bytes,),
        parameters=(f"{node.name}.parameters",) if node.weights_bytes else (),
        weights_bytes=node.weights_bytes,
        gradients_bytes=node.weights_bytes,
        optimizer_bytes=node.weights_bytes * optimizer_copies,
    )


def _parse(path: str | Path) -> tuple[dict[str, _Node], list[tuple[str, str]]]:
    nodes: dict[str, _Node] = {}
    edges: list[tuple[str, str]] = []
    for place, line in lines(path):
        parts = line.strip().split(" -- ")
        if line.startswith("\t"):
            if len(parts) != 2:
                raise InputError(place, repr(line.strip()[:80]), "an edge: 'nodeA -- nodeB'")
            for name in parts:
                if name not in nodes:
                    raise InputError(place, f"unknown node {name!r}", "a node of a line above")
            edges.append((parts[0], parts[1]))
            continue
        if len(parts) not in (3, 4):  # a fourth part is the stage that PipeDream's own optimizer wrote back
            raise InputError(place, repr(line.strip()[:60]), "'id -- description -- figures', separated by ' -- '")
        if parts[0] in nodes:
            raise InputError(place, f"a second node {parts[0]!r}", "unique node ids")
        if len(nodes) == MAX_NODES:
            raise InputError(place, f"more than {MAX_NODES} nodes", f"at most {MAX_NODES}")
        nodes[parts[0]] = _node(place, parts[0], parts[1], parts[2])
    return nodes, edges


def _node(place: str, name: str, description: str, text: str) -> _Node:
    figures = [part.partition("=") for part in text.split(", ")]
    if tuple(key for key, _, _ in figures) != KEYS:
        raise InputError(place, repr(text[:80]), f"the figures {', '.join(f'{key}=...' for key in KEYS)}")
    forward_ms, backward_ms, out, weights = (value for _, _, value in figures)
    outputs = out[1:-1].split("; ") if out.startswith("[") and out.endswith("]") else [out]
    return _Node(
        name,
        description.strip(),
        number(forward_ms, place, KEYS[0]) / 1e3,
        number(backward_ms, place, KEYS[1]) / 1e3,
        tuple(number(size, place, KEYS[2]) for size in outputs),
        number(weights, place, KEYS[3]),
    )


def _kahn(path: str | Path, nodes: dict[str, _Node], targets: dict[str, set[str]]) -> list[str]:
    def rank(name: str) -> tuple[int, str]:
        digits = re.search(r"\d{1,18}$", name)
        return (int(digits[0]) if digits else -1, name)

    waiting = dict.fromkeys(nodes, 0)
    for read_by in targets.values():
        for target in read_by:
            waiting[target] += 1
    ready = [rank(name) for name, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order: list[str] = []
    while ready:
        name = heapq.heappop(ready)[1]
        order.append(name)
        for target in targets[name]:
            waiting[target] -= 1
            if waiting[target] == 0:
                heapq.heappush(ready, rank(target))
    if len(order) < len(nodes):
        stuck = min((n for n in nodes if n not in set(order)), key=rank)
        raise InputError(str(path), f"a cycle that contains {stuck!r} or leads to it", "a graph without cycles")
    return order
