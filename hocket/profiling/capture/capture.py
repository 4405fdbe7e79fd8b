"""Capture of an unedited model and its loss as layers, for one microbatch size.

Rules of this file: layers follow from the model alone, so that a training worker finds the layers that the profile
names. `hocket.profiling.capture.record_forward` records, `hocket.profiling.capture.segmentation` groups,
`hocket.profiling.capture.stage` executes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import nn

from hocket.errors import CaptureError, InputError
from hocket.profiling.capture.captured import Captured, CapturedLayer, CapturedTensor, Choices
from hocket.profiling.capture.record_forward import all_modules, record
from hocket.profiling.capture.recorded_graph import RecordedGraph
from hocket.profiling.capture.segmentation import LayerDraft, LiveGraph, choose, group, pieces
from hocket.profiling.capture.stage import Stage
from hocket.profiling.checks.batch_independence import FIXED, check_same_structure, first_other
from hocket.profiling.checks.index_errors import refusal
from hocket.profiling.checks.sparse_gradients import check_sparse_gradients
from hocket.profiling.checks.stable_calls import check_unchanging
from hocket.profiling.job.clip import norm_of_model, norm_of_stages
from hocket.profiling.job.derived_model.precision import computed, own_buffers
from hocket.profiling.job.derived_model.subtasks import decomposed, whole_weights
from hocket.profiling.job.job import Job
from hocket.profiling.job.learning_rate.learning_rates import check_optimizer_and_rates

__all__ = ["Captured", "CapturedLayer", "CapturedTensor", "Stage", "capture"]

# Layers are chosen at this size for every requested size: batch normalisation refuses single values, and so size 1.
_BASE_SIZE = 2


def capture(
    job: Job,
    microbatch_size: int = _BASE_SIZE,
    *,
    max_layers: int = 64,
    like: Captured | None = None,
    joins: Callable[[LiveGraph], tuple[int, ...]] | None = None,
) -> Captured:
    """Capture a job's model and loss as layers, in its compute precision.

    The model is unchanged.

    Arguments:
        microbatch_size: number of samples; `Captured.for_size` gives the other sizes.
        max_layers: neighbouring layers are joined until there are at most this many.
        like: capture of another model of the same structure. Its choices are used, because a divided model has other
            costs.
        joins: chooses the number of finest layers (`pieces`) in each layer, for a graph with other operations than that
            of `like`; by default they are chosen by `like`, or by costs.

    Raises:
        CaptureError: the model cannot be cut into layers. The error names the module and the reason.
        RefusedError: the job clips sparse gradients, or scales them (float16).
        InputError: the weights have no values, the optimizer does not match the model's parameters, or a
            learning-rate schedule does not match the optimizer.
    """
    if microbatch_size < 1:
        raise InputError("microbatch_size", str(microbatch_size), ">= 1")
    if max_layers < 1:
        raise InputError("max_layers", str(max_layers), ">= 1")
    tensors = (*job.model.named_parameters(), *job.model.named_buffers())
    numberless = next((name for name, tensor in tensors if tensor.is_meta), None)
    if numberless is not None:
        hint = (
            "To plan without values, name a device type: hocket.profile(job, for_type=...), or --device-type. "
            "To train, start from a file of weights: hocket.train(..., weights=...), or --weights."
        )
        raise InputError("Job.model", f"{numberless!r} on `meta`, where it has no values", "weights with values", hint)
    check_optimizer_and_rates(job)
    if job.clip_grad_norm is not None:
        check_sparse_gradients(job, "clip_grad_norm needs their norm")
    if job.scales_loss:
        check_sparse_gradients(job, "precision float16 needs their norm")
    job = computed(decomposed(job))
    trace, choices = _first(job, Choices(max_layers) if like is None else like.choices)
    if job.own is not None and (written := own_buffers(job).keys() & trace.changed_buffers):
        job = computed(job.own, written)
        trace, choices = _uncast(job, choices, min(written))
    graph = LiveGraph(trace, _buffers_of(job))
    if joins is not None:
        choices = replace(choices, joined=joins(graph))
    elif like is None:
        choices = replace(choices, joined=choose(graph, pieces(graph), max_layers))
    sizes = _SameLayers()
    base = _build(job, _BASE_SIZE, graph, choices, sizes)
    sizes.found[_BASE_SIZE] = base
    larger = base.for_size(_BASE_SIZE + 1)
    sizes.found[_BASE_SIZE] = replace(base, tensors=_with_batch_dims(base.tensors, larger.tensors))
    sizes.found[_BASE_SIZE + 1] = replace(larger, tensors=_with_batch_dims(larger.tensors, base.tensors))
    return sizes.found[_BASE_SIZE].for_size(microbatch_size)


class _SameLayers:
    """Captures of one job by microbatch size; all have the same layers."""

    def __init__(self) -> None:
        self.found: dict[int, Captured] = {}

    def __call__(self, captured: Captured, size: int) -> Captured:
        """Return the layers at another size, captured at the first call.

        Raises:
            CaptureError: the model runs other operations at that size.
        """
        if size not in self.found:
            other = _capture_at(captured.job, size, captured.choices, self)
            check_same_structure(captured, other)
            self.found[size] = other
        return self.found[size]


def _first(job: Job, choices: Choices) -> tuple[RecordedGraph, Choices]:
    """Record the model at the first size, with the first choices that work.

    Raises:
        CaptureError: the model cannot be cut into layers.
    """
    while True:
        try:
            return _record(job, _BASE_SIZE, choices), choices
        except CaptureError as error:
            choices = _yielding(job, choices, error)


def _uncast(job: Job, choices: Choices, buffer: str) -> tuple[RecordedGraph, Choices]:
    """Record the model again, with buffers that are not cast because the forward writes them.

    Raises:
        CaptureError: the model cannot compute with such a buffer.
    """
    try:
        return _first(job, choices)
    except CaptureError as error:
        long, short = str(job.model.get_buffer(buffer).dtype).removeprefix("torch."), job.precision
        found = (
            f"{error.found}, with the buffer {buffer} in {long}: the forward writes it, so it is not cast to {short}"
        )
        hint = f"Cast where it is used: self.{buffer.rpartition('.')[2]}.to(x.dtype)."
        raise CaptureError(error.place, found, f"a forward that computes in {short} with it", hint) from error


def _yielding(job: Job, choices: Choices, error: CaptureError) -> Choices:
    """Choices to try after a refusal: tracing mode first, then a module kept whole.

    Raises:
        CaptureError: `error`, if nothing is left to try.
    """
    if not hasattr(error, "module_path"):
        raise error
    if not choices.as_tracing:
        return replace(choices, as_tracing=True)
    # A module kept whole runs its own code as one layer. Only the outermost module cannot be kept whole.
    path: str = error.module_path
    if not path or path in choices.opaque or path not in dict(job.model.named_modules()):
        raise error
    note = f"{path} is kept whole: {error.found}"
    return replace(choices, as_tracing=False, opaque=choices.opaque | {path}, notes=(*choices.notes, note))


def _record(job: Job, size: int, choices: Choices) -> RecordedGraph:
    # Each size uses other samples, so that operations that depend on the data differ between sizes.
    first = size * (size - 1) // 2
    indices = [(first + i) % job.samples for i in range(size)]
    batch = job.batch(indices)
    try:
        return record(job.model, job.loss, job, batch, choices.opaque, choices.as_tracing)
    except CaptureError as error:
        refused = refusal(error.__cause__, indices, batch) if error.__cause__ is not None else None
        if refused is None:
            raise
        raise refused from error.__cause__


def _capture_at(job: Job, size: int, choices: Choices, sizes: "_SameLayers") -> Captured:
    graph = LiveGraph(_record(job, size, choices), _buffers_of(job))
    found = _build(job, size, graph, choices, sizes)
    base = sizes.found[_BASE_SIZE]
    if base.microbatch_size == size:
        return found
    return replace(found, tensors=_with_batch_dims(found.tensors, base.tensors))


def _buffers_of(job: Job) -> dict[str, tuple[str, ...]]:
    modules = all_modules(job.model, job.loss)
    return {path: tuple(name for name, _ in m.named_buffers(prefix=path)) for path, m in modules.items()}


def _build(job: Job, size: int, graph: LiveGraph, choices: Choices, sizes: "_SameLayers") -> Captured:
    trace = graph.trace
    modules = all_modules(job.model, job.loss)
    first_name = {id(p): name for name, p in job.model.named_parameters()}
    finest = pieces(graph)
    if len(finest) != sum(choices.joined):
        check_unchanging(job)
        base = sizes.found.get(_BASE_SIZE)
        other = first_other(base.graph.trace, trace) if base is not None else ""
        found = f"{len(finest)} operations and modules with {size} samples{other}"
        raise CaptureError("model", found, f"{sum(choices.joined)}, as with other samples", FIXED)
    segments = group(finest, choices.joined)
    notes = (*choices.notes, *whole_weights(job))
    layers = tuple(_layer(graph, s, modules, first_name) for s in segments)
    tensors = _tensors(graph, segments, layers)
    names = {trace.values[t.value].name: t.name for t in tensors if t.source < 0}
    for value in trace.values:
        if value.kind == "batch" and value.name not in names:
            notes = (*notes, f"batch tensor {value.name!r} is not used")
    _check_held(trace, layers, modules)
    used = {name for layer in layers for name in layer.parameters}
    for name in first_name.values():
        if name not in used:
            notes = (*notes, f"parameter {name!r} is not used")
    users: dict[str, list[int]] = {}
    for k, layer in enumerate(layers):
        for name in layer.parameters:
            users.setdefault(name, []).append(k)
    ties = tuple(sorted({tuple(ks) for ks in users.values() if len(ks) > 1}))
    return Captured(
        job, size, layers, tensors, names, ties, graph, choices, notes,
        clip_grad_norm=norm_of_model(job), clip_stage_norm=norm_of_stages(job),
        loss_weighted=callable(job.loss_weight), loss_scaled=job.scales_loss, _at_size=sizes,
    )  # fmt: skip


def _check_held(trace: RecordedGraph, layers: tuple[CapturedLayer, ...], modules: dict[str, nn.Module]) -> None:
    """Refuse a written buffer that no layer holds.

    A hook of one module writes it, and another module holds it.
    """
    named = {f"{path}.{key}".lstrip("."): b for path, m in modules.items() for key, b in m._buffers.items()}
    held = {id(named[name]) for layer in layers for name in layer.buffers if name in named}
    lost = sorted(name for name in trace.changed_buffers if id(named[name]) not in held)
    if lost:
        hint = "Write it in that module's forward."
        raise CaptureError(
            f"buffer {lost[0]}", "written by a hook of another module", "a write by the module that holds it", hint
        )


def _layer(
    graph: LiveGraph, segment: LayerDraft, modules: dict[str, nn.Module], first_name: dict[int, str]
) -> CapturedLayer:
    trace = graph.trace
    nodes = [trace.nodes[i] for i in segment.nodes]
    paths = list(dict.fromkeys(n.target for n in nodes if isinstance(n.target, str)))
    weights: dict[str, None] = {}
    buffers: dict[str, None] = {}
    trained: set[str] = set()
    for index, node in zip(segment.nodes, nodes, strict=True):
        own: dict[str, None] = {}
        if isinstance(node.target, str):
            module = modules[node.target]
            own.update(dict.fromkeys(first_name[id(p)] for p in module.parameters()))
            buffers.update(dict.fromkeys(n for n, _ in module.named_buffers(prefix=node.target)))
        for value in (trace.values[v] for v in node.reads):
            if value.kind in ("parameter", "buffer"):
                (own if value.kind == "parameter" else buffers)[value.name] = None
        weights.update(own)
        if index in graph.backward:
            trained.update(own)
    statistics = any(
        isinstance(m, nn.modules.batchnorm._NormBase) and m.training for p in paths for m in modules[p].modules()
    )
    running = {
        name
        for p in paths
        for path, m in modules[p].named_modules(prefix=p)
        if isinstance(m, nn.modules.batchnorm._NormBase)
        for name, _ in m.named_buffers(prefix=path)
    }
    written = tuple(name for name in buffers if name in trace.changed_buffers and name not in running)
    flops = sum(n.flops for n in nodes)
    return CapturedLayer(
        segment.path,
        segment.kind, tuple(paths), tuple(weights), tuple(buffers), any(n.random for n in nodes), statistics, flops,
        tuple(segment.nodes), written, tuple(name for name in weights if name not in trained),
    )  # fmt: skip


def _tensors(
    graph: LiveGraph, segments: list[LayerDraft], layers: tuple[CapturedLayer, ...]
) -> tuple[CapturedTensor, ...]:
    trace = graph.trace
    home = {i: k for k, s in enumerate(segments) for i in s.nodes}
    readers: dict[int, set[int]] = {}
    for index, k in home.items():
        node = trace.nodes[index]
        for v in (*node.reads, *(before for before, _ in node.aliases)):
            value = trace.values[v]
            if graph.fixed[v] or value.kind in ("parameter", "buffer", "constant"):
                continue
            if value.node < 0 or home[value.node] != k:
                readers.setdefault(v, set()).add(k)
    count: dict[int, int] = {}
    out = []
    for v in sorted(readers, key=lambda v: (trace.values[v].node, v)):
        value = trace.values[v]
        source = home[value.node] if value.node >= 0 else -1
        if source < 0:
            name = f"batch:{value.name}"
        else:
            k = count[source] = count.get(source, 0) + 1
            name = layers[source].name if k == 1 else f"{layers[source].name}[{k - 1}]"
        targets = tuple(sorted(readers[v]))
        out.append(
            CapturedTensor(name, source, targets, value.requires_grad, value.shape, value.dtype, None, v, value.stride)
        )
    return tuple(out)


def _with_batch_dims(tensors: Sequence[CapturedTensor], others: Sequence[CapturedTensor]) -> tuple[CapturedTensor, ...]:
    """Set each tensor's batch dimension: the first that differs between two sizes."""
    found = []
    for s, t in zip(tensors, others, strict=False):
        grown = [d for d, (m, n) in enumerate(zip(s.shape, t.shape, strict=False)) if m != n]
        found.append(replace(s, batch_dim=grown[0] if grown else None))
    return tuple(found)
