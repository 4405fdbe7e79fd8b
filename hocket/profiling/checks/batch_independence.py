"""Check that a model runs equal operations for every number of samples."""

from itertools import zip_longest

from hocket.errors import CaptureError
from hocket.profiling.capture.captured import Captured
from hocket.profiling.capture.recorded_graph import RecordedGraph
from hocket.profiling.checks.stable_calls import check_unchanging

FIXED = (
    "A model with shapes or operations that depend on the data cannot be planned: choose values with torch.where, and run the "
    "same operations for every number of samples."
)


def check_same_structure(base: Captured, other: Captured) -> None:
    """Refuse captures of two microbatch sizes with different layers or tensors.

    Raises:
        CaptureError: the captures differ; the error names the first difference, or what the model changes at each call.
    """
    for a, b in zip(base.layers, other.layers, strict=False):
        labels = [[c.graph.trace.nodes[i].label for i in layer.nodes] for c, layer in ((base, a), (other, b))]
        if a.name != b.name or labels[0] != labels[1]:
            first = first_other(base.graph.trace, other.graph.trace)
            _changes(a.name, base, other, f"{b.name} ({', '.join(labels[1])[:120]}){first}")
    if len(base.layers) != len(other.layers):
        _changes("model", base, other, f"{len(other.layers)} layers")
    for s, t in zip(base.tensors, other.tensors, strict=False):
        if (s.name, s.targets, s.dtype, len(s.shape)) != (t.name, t.targets, t.dtype, len(t.shape)):
            _changes(s.name, base, other, f"tensor {t.name} of {t.dtype} and shape {t.shape}")
        for m, n in zip(s.shape, t.shape, strict=True):
            if m != n and m * other.microbatch_size != n * base.microbatch_size:
                _changes(s.name, base, other, f"shape {t.shape} after {s.shape}")
    if len(base.tensors) != len(other.tensors):
        _changes("model", base, other, f"{len(other.tensors)} tensors between layers")


def first_other(base: RecordedGraph, trace: RecordedGraph) -> str:
    """Return the first different operation, as ": `tanh` instead of `relu`"."""
    labels = ([node.label for node in each.nodes] for each in (base, trace))
    for one, two in zip_longest(*labels):
        if one != two:
            return f": `{two}` instead of `{one}`" if one and two else f": `{one or two}` {'more' if two else 'less'}"
    return ""


def _changes(place: str, base: Captured, other: Captured, found: str) -> None:
    check_unchanging(base.job)
    raise CaptureError(
        f"layer {place}", f"{found} in a microbatch of {other.microbatch_size} samples",
        f"the same layers as in a microbatch of {base.microbatch_size} samples, and the same shapes for each sample",
        FIXED,
    )  # fmt: skip
