"""Measurement of a job: seconds and bytes of each layer, by microbatch size.

Rules of this file: layers are timed one after the other inside a whole forward and backward on one device, so that
caches are as in training. The layers' times are scaled to the mean of the undivided model, which runs as a worker
runs its stage. The clock is an argument. The user's model is not changed.
Source: the profiling step of Narayanan's dissertation, section 2.3, with spread, memory and the scaling added.
"""

import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hocket.errors import InputError
from hocket.profiling.capture.capture import Captured, Stage, capture
from hocket.profiling.checks.loss_additivity import additivity
from hocket.profiling.checks.verify import verify
from hocket.profiling.data.repeatable import check_repeatable
from hocket.profiling.job.job import Job
from hocket.profiling.measure.assemble import MeasuredSeconds, MeasuredSize, MeasuredStep, Measurements, assemble
from hocket.profiling.measure.background_load import BackgroundLoad
from hocket.profiling.measure.compile_speedup import ends_of, speedup
from hocket.profiling.measure.memory import LayerBytes, count_bytes, optimizer_bytes, step_peaks
from hocket.profiling.measure.request import USUAL_REQUEST, MeasureRequest
from hocket.profiling.measure.stopwatch import Stopwatch
from hocket.profiling.measure.timing import LayerTimer, Times, deviation, timed
from hocket.profiling.measure.worker_costs import StepMode, WorkerCosts
from hocket.profiling.profile import CPU, ModelProfile
from hocket.util.malloc import keep_freed_memory

# On an idle machine, layers' times add up to those of the undivided model within a tenth.
_BUSY = 1.3


def measure(
    job: Job,
    microbatch_sizes: Sequence[int] = (1, 2, 4, 8),
    request: MeasureRequest = USUAL_REQUEST,
    part: Callable[[Captured], Captured] | None = None,
) -> ModelProfile:
    """Measure the profile of a job: seconds and bytes of each layer.

    On a CPU, this process keeps freed memory from then on, as workers do (util/malloc.py).

    Arguments:
        microbatch_sizes: numbers of samples; sizes above the job's batch size are left out.
        request: device, time limit and other settings of the measurement.
        part: function from the captured job to the part that a tensor-parallel rank runs, with the same layers; None
            to measure the whole job.

    Raises:
        CaptureError: the model cannot be cut into layers, or the layers do not compute what the model computes.
        InputError: no usable microbatch size, nothing to train, or a sample that changes when read again.
    """
    sizes = sorted({int(s) for s in microbatch_sizes if 1 <= s <= job.batch_size})
    if not sizes:
        found = ", ".join(map(str, microbatch_sizes)) or "none"
        raise InputError("microbatch_sizes", found, f"at least one from 1 to {job.batch_size}, the job's batch_size")
    place, watch = request.place(), Stopwatch()
    check_repeatable(job)
    if place.type == "cpu":
        keep_freed_memory()  # as workers do: page faults would be counted as computation
    tell, threads, budget_s = request.tell, request.threads, request.budget_s
    total = (1 + request.rounds) * len(sizes) + 1
    # The companions load the job while this process captures it.
    with BackgroundLoad(job.path, request.neighbours, threads, start=request.start) as companions:
        captured = capture(job, max_layers=request.max_layers)
        if part is not None:
            captured = part(captured)
        graphs, notes = captured.for_sizes(sizes)
        if not verify(graphs[-1]):
            notes.append("not compared with the model's own loss: it draws random numbers that the loss does not need")
        watch.lap("capture")
        with _quiet(threads, place):
            added = additivity(job, [name for layer in captured.layers for name in layer.written])
            watch.lap("checks of the loss")
            columns: list[tuple[int, list[LayerBytes], Times]] = []
            for k, graph in enumerate(graphs):
                tell(k, total, f"bytes of microbatches of {graph.microbatch_size}")
                single, whole, batch = _made(graph, place)
                columns.append((graph.microbatch_size, count_bytes(single, batch), Times()))
            watch.lap("bytes of layers")
            share_s, rounds = budget_s / len(graphs) / request.rounds, request.rounds
            for k, (graph, (size, _, times)) in enumerate(zip(graphs * rounds, columns * rounds, strict=True)):
                # Built again in each round: several sizes at once would need the memory of several models.
                single, whole, batch = _made(graph, place)
                companions.train(size)
                watch.lap("start of busy neighbours" if request.neighbours else "seconds of layers")
                tell(len(graphs) + k, total, f"seconds of microbatches of {size}")
                timer = LayerTimer(graph, batch, place, request.clock)
                timed(timer, single, whole, share_s, times)
                watch.lap("seconds of layers")
            busy = companions.busy
            tell(total - 1, total, "optimizer step")
            step = _optimizer(whole, [layer.parameters for layer in captured.layers], [times for *_, times in columns])
            watch.lap("optimizer step")
            code = None
            if request.compile:
                tell(total - 1, total, f"code of {request.compile}")
                usual = np.median(np.array(columns[-1][2].forward) + np.array(columns[-1][2].backward), axis=0)
                timers = [LayerTimer(graph, graph.first_inputs(place), place, request.clock) for graph in graphs]
                code = speedup(timers, ends_of(usual.tolist()), request.compile, budget_s / 4)
                watch.lap("torch.compile")
    if request.neighbours:
        notes += [f"measured with {busy} busy {'neighbour' if busy == 1 else 'neighbours'}", *companions.problems]
    notes += added.notes
    tell(total, total, "done")
    made = [_column(*each, varies=place.type == "cpu") for each in columns]
    notes += [note for _, said in made for note in said]
    measured = Measurements(
        request.device_type or type_of(place),
        [column for column, _ in made],
        step,
        source=f"measured by hocket with torch {torch.__version__}",
        notes=(*notes, watch.note),
        loss_parts=added.finding,
    )
    return replace(assemble(job, captured, measured), compiled=code)


def type_of(device: torch.device) -> str:
    """Device type in profiles: "cpu-core", or the CUDA device's name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else CPU


def usual_sizes(batch_size: int) -> list[int]:
    """Return the four largest powers of two up to a batch size."""
    return [2**k for k in range(batch_size.bit_length())][-4:]


@contextmanager
def _quiet(threads: int, device: torch.device) -> Iterator[None]:
    """Context with a worker's threads, without garbage collection; keeps random state."""
    before = torch.get_num_threads()
    collects = gc.isenabled()
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.enable_grad():
        torch.set_num_threads(threads)
        gc.collect()
        gc.disable()
        try:
            yield
        finally:
            torch.set_num_threads(before)
            if collects:
                gc.enable()


def _made(captured: Captured, device: torch.device) -> tuple[list[Stage], WorkerCosts, dict[str, Tensor]]:
    single = [Stage(captured, [k], device=device) for k in range(len(captured.layers))]
    return single, WorkerCosts(captured, captured.microbatch_size, device), captured.first_inputs(device)


def _optimizer(whole: WorkerCosts, layers: Sequence[Sequence[str]], each: Sequence[Times]) -> MeasuredStep:
    """Return the cost of an optimizer step; its time is shared among weights by bytes.

    Arguments:
        layers: names of each layer's parameters.
        each: times of each microbatch size.
    """
    median = {way: statistics.median(s for times in each for s in times.step[way]) for way in StepMode}
    call_s = min(median[StepMode.LEAST], median[StepMode.IN_PLACE])
    step_s, copy_s = median[StepMode.IN_PLACE] - call_s, max(0.0, median[StepMode.COPYING] - median[StepMode.IN_PLACE])
    weights: dict[str, Tensor] = dict(whole.masters)
    total = sum(p.numel() * p.element_size() for p in weights.values())
    share = {name: p.numel() * p.element_size() / total for name, p in weights.items()}
    peaks, together = step_peaks(whole.optimizer, weights, layers)
    return MeasuredStep(
        optimizer_bytes(whole.optimizer, weights),
        {name: step_s * part for name, part in share.items()},
        {name: copy_s * part for name, part in share.items()},
        call_s,
        peaks,
        together,
    )


def usual(seconds: Sequence[float]) -> float:
    """Return the mean without the slowest fiftieth.

    The time of many consecutive microbatches follows their mean, which exceeds the median if a few are disturbed. The
    slowest fiftieth is attributed to the machine.
    """
    kept = sorted(seconds)[: max(1, len(seconds) - (len(seconds) + 49) // 50)]
    return statistics.fmean(kept)


def _column(size: int, counted: list[LayerBytes], times: Times, varies: bool) -> tuple[MeasuredSize, list[str]]:
    """Return times of one microbatch size, scaled to the undivided model, and notes.

    Arguments:
        varies: True if each replica's times vary independently between microbatches, as on a CPU.
    """
    parts = np.median(np.array(times.forward), axis=0), np.median(np.array(times.backward), axis=0)
    wholes = usual(times.whole_forward), usual(times.whole_backward)
    factors = [whole / part.sum() if part.sum() > 0 else 1.0 for whole, part in zip(wholes, parts, strict=True)]
    both = np.array(times.forward) + np.array(times.backward)
    low, high = np.percentile(both, (25, 75), axis=0)
    said = f"microbatches of {size}: layers scaled by {factors[0]:.3f} forward and {factors[1]:.3f} backward"
    notes = [f"{said}, {len(times.forward)} iterations"]
    # Other programs disturb long times more than short ones: a wide gap between them shows a busy machine.
    if factors[0] > _BUSY:
        notes.append(f"microbatches of {size}: the machine seems to have been busy; measure again when it is idle")
    both_whole = (times.whole_forward, times.whole_backward)
    deviations = [deviation(own, times.rounds) if varies else 0.0 for own in both_whole]
    seconds = MeasuredSeconds(parts[0] * factors[0], parts[1] * factors[1], (high - low) / 2, *wholes, *deviations)
    return MeasuredSize(size, counted, seconds, statistics.median(times.load)), notes
