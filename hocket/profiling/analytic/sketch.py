"""Sketch of a job: layers, bytes and operators on fake tensors.

A job of any size is sketched without computing or allocating.

Rules of this file: memory.py counts bytes here as on real tensors, so that both give the same result.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.autograd.graph import get_gradient_edge

from hocket.errors import InputError
from hocket.profiling.analytic.aten_costs import OperatorLog
from hocket.profiling.analytic.fake_tensors import fake_copy, faked
from hocket.profiling.analytic.operators import Operator
from hocket.profiling.capture.capture import Captured, Stage, capture
from hocket.profiling.job.derived_model.precision import masters, sums_of
from hocket.profiling.job.job import Job
from hocket.profiling.job.job_file import load_job
from hocket.profiling.job.optimizer import optimizer_of
from hocket.profiling.measure.assemble import MeasuredSize, MeasuredStep, Measurements, assemble
from hocket.profiling.measure.measure import usual_sizes
from hocket.profiling.measure.memory import Catch, count_bytes, optimizer_bytes, seed_of, step_peaks
from hocket.profiling.measure.request import Progress
from hocket.profiling.operators_only import LayerOperators, Sketch

_NEEDS_NUMBERS = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException)


def sketch(
    job: Job | str | Path,
    microbatch_sizes: Sequence[int] = (),
    *,
    max_layers: int = 64,
    progress: Progress | None = None,
    foreach: bool = False,
) -> Sketch:
    """Find a job's layers, bytes and operators on fake tensors, without computing.

    Arguments:
        job: the job, or the path of a job file.
        microbatch_sizes: in samples; by default the four largest powers of two up to the job's batch size.
        max_layers: largest number of layers.
        progress: called with (done, total, what), in steps.
        foreach: True to count the memory of a `foreach` step of all weights at once, if the optimizer supports it and
            leaves the choice to torch. This is torch's choice on a GPU.

    Raises:
        CaptureError: the model cannot be cut into layers, or its operations depend on numbers.
        InputError: a microbatch size exceeds the job's batch size, there is nothing to train, or the job file does
            not run.
    """
    with faked() as mode:
        known = _faked(job, mode) if isinstance(job, Job) else _loaded(job, mode)
        return _sketch(known, microbatch_sizes, max_layers, progress, foreach)


def _loaded(path: str | Path, mode: FakeTensorMode) -> Job:
    """Load the job of a file on fake tensors.

    A job that needs values during construction is built from real tensors first.
    """
    try:
        # Other objects of the job file may come from outside, such as numpy buffers.
        return _faked(load_job(path), mode)
    except InputError as error:
        if not isinstance(error.__cause__, _NEEDS_NUMBERS):
            raise
    with torch.utils._python_dispatch._disable_current_modes():
        made = load_job(path)
    return _faked(made, mode)


def _faked(job: Job, mode: FakeTensorMode) -> Job:
    return dataclasses.replace(job, model=fake_copy(job.model, mode))


def _sketch(job: Job, sizes: Sequence[int], max_layers: int, progress: Progress | None, foreach: bool) -> Sketch:
    for size in sizes:
        if not 1 <= size <= job.batch_size:
            raise InputError("microbatch", str(size), f"1 to {job.batch_size}, the job's batch_size")
    wanted = sorted({int(size) for size in sizes}) or usual_sizes(job.batch_size)
    tell = progress or (lambda done, total, what: None)
    tell(0, len(wanted) + 2, "layers")
    captured = capture(job, max_layers=max_layers)
    graphs, notes = captured.for_sizes(wanted)
    columns, work = [], []
    for k, at in enumerate(graphs):
        size = at.microbatch_size
        tell(k + 1, len(graphs) + 2, f"microbatches of {size}")
        stages = [Stage(at, [i]) for i in range(len(at.layers))]
        batch = at.inputs(at.job.batch(range(size)))
        work.append(_work(stages, batch))
        columns.append(MeasuredSize(size, count_bytes(stages, batch)))
    tell(len(graphs) + 1, len(graphs) + 2, "optimizer step")
    step, operators, parameters = _step(captured, foreach)
    source = f"worked out by hocket with torch {torch.__version__}"
    profile = assemble(job, captured, Measurements("any", columns, step, source, tuple(notes)))
    tell(len(graphs) + 2, len(graphs) + 2, "done")
    return Sketch(profile, tuple(work), operators, parameters)


def _work(stages: Sequence[Stage], batch: dict[str, Tensor]) -> tuple[LayerOperators, ...]:
    """Return the operators of every layer in one forward and backward."""
    made, boxes = dict(batch), []
    forward: list[tuple[Operator, ...]] = []
    backward: list[tuple[Operator, ...]] = []
    with OperatorLog() as log:
        for stage in stages:
            for p in stage.parameters().values():
                p.grad = torch.empty_like(p, dtype=sums_of(p)) if p.requires_grad else None
            box: dict[str, Tensor] = {}
            given = stage.detached(made)
            caught = {n: Catch.apply(t, n, box) if t.requires_grad else t for n, t in given.items()}  # type: ignore[no-untyped-call]
            log.taken()
            out = stage.run(caught, seed_of)
            forward.append(log.taken())
            boxes.append((box, out))
            made.update((name, tensor.detach()) for name, tensor in out.items())
        grads: dict[str, Tensor] = {}
        for stage in reversed(stages):
            box, out = boxes.pop()
            ends, ways = stage.roots(out, grads)
            given_ways = [torch.ones_like(end) if way is None else way for end, way in zip(ends, ways, strict=True)]
            edges = [get_gradient_edge(end) for end in ends]
            log.taken()
            if edges:
                torch.autograd.backward(edges, given_ways)
            for name, gradient in box.items():
                grads[name] = grads[name] + gradient if name in grads else gradient
            backward.append(log.taken())
            for p in stage.parameters().values():
                p.grad = None
    return tuple(LayerOperators(*each) for each in zip(forward, reversed(backward), strict=True))


def _step(captured: Captured, foreach: bool) -> tuple[MeasuredStep, tuple[Operator, ...], int]:
    """Bytes and operators of an optimizer step after the first; number of weights."""
    stage = Stage(captured, range(len(captured.layers)), share=True)
    trained = {name: p for name, p in stage.parameters().items() if p.requires_grad}
    apart = masters(captured.job, trained, stage.device)
    weights = {name: nn.Parameter(p.detach()) for name, p in (apart or trained).items()}
    if not weights:
        raise InputError("Job.model", "no parameter that requires a gradient", "at least one")
    optimizer = optimizer_of(captured.job, weights)
    for p in weights.values():
        p.grad = torch.empty_like(p)
    optimizer.step()
    with OperatorLog() as log:
        optimizer.step()
    for group in optimizer.param_groups if foreach else ():
        # This changes bytes only: operators stay those of single weights, because their rates are known.
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True
    peaks, together = step_peaks(optimizer, weights, [layer.parameters for layer in captured.layers])
    step = MeasuredStep(optimizer_bytes(optimizer, weights), {}, {}, 0.0, peaks, together)
    return step, log.taken(), len(weights)
