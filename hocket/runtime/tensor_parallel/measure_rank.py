"""Measurement of one tensor-parallel rank without the other ranks.

The sharded model runs alone. Collectives between the ranks are counted but not run. Their time follows from the group's
links (cost/analytic/tensor_group.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from hocket.errors import InputError
from hocket.profiling.capture.capture import Captured, Stage, capture
from hocket.profiling.job.job import Job
from hocket.profiling.layer import Layer
from hocket.profiling.measure.measure import measure
from hocket.profiling.measure.memory import collect, seed_of
from hocket.profiling.measure.request import USUAL_REQUEST, MeasureRequest
from hocket.profiling.profile import ModelProfile
from hocket.runtime.stage.device_type import known_type
from hocket.runtime.tensor_parallel.shard_model import DeferredGroup, Division, divided_tensors, split_of


def measure_member(
    job: Job,
    width: int,
    microbatch_sizes: Sequence[int] = (1, 2, 4, 8),
    request: MeasureRequest = USUAL_REQUEST,
    sequence_parallel: bool = False,
) -> ModelProfile:
    """Profile one rank of a tensor-parallel job, without the time of collectives.

    A profile of a GPU in the catalogue has the catalogue's device type, so that it fits cluster files. Layers and
    tensors have the names of the undivided job, so that a tensor-parallel plan fits the job.

    Arguments:
        width: tensor-parallel size; 1 measures the whole model.
        microbatch_sizes: microbatch sizes to measure, in samples.
        sequence_parallel: True to use sequence parallelism where possible.

    Raises:
        RefusedError: the model cannot be divided; the error names the module and the reason.
        InputError: sequence parallelism for one device.
    """
    if width == 1 and sequence_parallel:
        raise InputError("sequence_parallel", "true, for one device", "false", "Set `tensor` to 2 or more.")
    device = torch.device(request.device)
    if device.type == "cuda" and torch.cuda.is_available() and request.device_type is None:
        request = replace(request, device_type=known_type(device))
    if width == 1:
        return measure(job, microbatch_sizes, request)
    division = Division(job, split_of(job, width, sequence_parallel), 0)
    found: list[Captured] = []

    def part(whole: Captured) -> Captured:
        found.append(capture(division.job, like=whole))
        return found[0]

    profile = measure(job, microbatch_sizes, request, part)
    counted = [_counted(division, found[0].for_size(size), device) for size in profile.microbatch_sizes]
    layers = tuple(_counting(layer, [of[k] for of in counted]) for k, layer in enumerate(profile.layers))
    note = f"of one of {width} tensor-parallel ranks, without the time of collectives between them"
    own = divided_tensors(found[0])
    tensors = tuple(replace(tensor, own=tensor.name in own) for tensor in profile.tensors)
    profile = replace(profile, layers=layers, tensors=tensors, tensor=width, notes=(*profile.notes, note))
    return replace(profile, sequence_parallel=sequence_parallel)


@dataclass
class _Count:
    """Collectives of one layer for one microbatch.

    Attributes:
        reductions: (number of all-reduces in the forward, number of all-reduces in the backward).
        reduced_bytes: total bytes of the all-reduces of forward and backward.
        gathers: (number in the forward, number in the backward) of all-gathers and reduce-scatters together.
        gathered_bytes: total bytes of the all-gathers and reduce-scatters of forward and backward.
    """

    reductions: tuple[int, int] = (0, 0)
    reduced_bytes: int = 0
    gathers: tuple[int, int] = (0, 0)
    gathered_bytes: int = 0


def _counted(division: Division, captured: Captured, device: torch.device) -> list[_Count]:
    """Count the collectives of each layer in the forward and the backward of one microbatch, by running the layers.

    The collectives are counted but not executed.

    Arguments:
        division: the tensor-parallel division of the model.
        captured: one rank's captured model, with inputs of the microbatch size to count.
        device: device on which the layers run.

    Returns:
        For each layer, the number of collectives in (forward, backward), and their total bytes.
    """
    members, made = division.members, captured.first_inputs(device)
    runs, counts = [], []
    for k in range(len(captured.layers)):
        stage = Stage(captured, [k], device=device)
        given = stage.detached(made)
        members.forget()
        out = stage.run(given, seed_of)
        counts.append(_so_far(members))
        runs.append((stage, given, out))
        made.update(out)
    grads: dict[str, torch.Tensor] = {}
    for count in reversed(counts):
        stage, given, out = runs.pop()
        ends, ways = stage.roots(out, grads)
        members.forget()
        if ends:
            torch.autograd.backward(ends, ways)
        back = _so_far(members)
        count.reductions, count.gathers = (count.reductions[0], back.reductions[1]), (count.gathers[0], back.gathers[1])
        count.reduced_bytes += back.reduced_bytes
        count.gathered_bytes += back.gathered_bytes
        collect(given, grads)
    return counts


def _so_far(members: DeferredGroup) -> _Count:
    done, size = members.done, members.bytes
    gathers = done.gathers + done.scatters
    return _Count(
        (done.all_reduces.forward, done.all_reduces.backward), size["all_reduces"],
        (gathers.forward, gathers.backward), size["gathers"] + size["scatters"],
    )  # fmt: skip


def _counting(layer: Layer, by_size: Sequence[_Count]) -> Layer:
    last = by_size[-1]
    if any(last.reductions):
        mean = tuple(one.reduced_bytes / sum(last.reductions) for one in by_size)
        layer = replace(layer, reductions=last.reductions, reduced_bytes=mean)
    if any(last.gathers):
        mean = tuple(one.gathered_bytes / sum(last.gathers) for one in by_size)
        layer = replace(layer, gathers=last.gathers, gathered_bytes=mean)
    return layer
