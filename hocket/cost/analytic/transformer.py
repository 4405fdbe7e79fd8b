"""Analytic profiles: what a transformer takes on a device type, worked out instead of measured.

Rules of this file: nothing is allocated and nothing runs. Figures are those of one of `tensor` devices, without what they take to
reduce among each other, which is a matter of their links (`Layer.reductions` and `Layer.gathers` say how often they do). The head of
`cost/kernels.py` says what operators take, `profiling/analytic/transformer_blocks.py` what they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hocket.cost.analytic.calibration import Calibration, calibrated_s
from hocket.cost.kernels import check_rate, moving_s
from hocket.errors import InputError
from hocket.hardware.device_type import DeviceType
from hocket.profiling.analytic.operators import MemoryPass, flops_of
from hocket.profiling.analytic.transformer import Transformer
from hocket.profiling.analytic.transformer_blocks import BlockCost, blocks_of
from hocket.profiling.layer import AGAIN, RANDOM, Layer, Tensor
from hocket.profiling.profile import ModelProfile

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Precision:
    """Bytes of a parameter's weight, gradient and optimizer state, and how many are moved by a step.

    The default is training in 16 bits with exact gradients, an exact copy of the weights, and Adam's two moments; a step reads
    the gradient twice (for its norm), reads and writes the three exact numbers, and writes the weight. A microbatch's gradient is added
    to those before it where it is made: `adding_bytes` are moved where that is a pass of its own (Megatron-LM, `main_grad.add_`).
    """

    dtype: str = "float16"
    weight_bytes: float = 2
    gradient_bytes: float = 4
    optimizer_bytes: float = 12
    step_bytes: float = 34
    adding_bytes: float = 0

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


def analytic(
    model: Transformer,
    device: DeviceType,
    *,
    tensor: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
    precision: Precision = Precision(),
    calibration: Calibration | None = None,
    microbatch_sizes: Sequence[int] = (1, 2, 4, 8),
) -> ModelProfile:
    """The profile of a model on one of so many tensor-parallel devices.

    Arguments:
        sequence_parallel: blocks work on slices of the sequence, but between columns and rows.
        recompute: inside of every block: none; "selective", what attention makes between scores and values; "full", all
            but the block's input (section 4.3.5).
        calibration: what a measured profile has taught of the device type.

    Raises:
        InputError: a width that does not divide the model, another word for `recompute`, no rate for the type of numbers, a
            calibration of another device type.
    """
    if sequence_parallel and (tensor == 1 or model.sequence % tensor):
        raise InputError(
            "sequence_parallel",
            f"a sequence of {model.sequence} for {tensor} devices",
            "two or more devices, in a number that divides the sequence",
        )
    if recompute not in RECOMPUTE:
        raise InputError("recompute", repr(recompute), f"one of {', '.join(RECOMPUTE)}")
    check_rate(device, precision.dtype)
    if calibration is not None:
        calibration.check(device)
    layers = [blocks_of(model, size, tensor, sequence_parallel) for size in microbatch_sizes]
    known: dict[str, Layer] = {}
    rows: list[Layer] = []
    slower = calibration.step if calibration else 1.0
    for k, each in enumerate(zip(*layers, strict=True)):
        kind = each[0].kind
        if kind not in known:
            own = [_figures(block, device, precision, recompute, calibration) for block in each]
            again = recompute == "full" and kind == "block"
            layer = _layer(each, own, model, precision, device, tensor, again, slower)
            if again or (recompute == "selective" and each[0].again):
                layer = replace(layer, notes=(*layer.notes, f"{AGAIN}{recompute}"))
            known[kind] = layer
        layer = known[kind]
        if kind == "block":
            layer = replace(layer, name=f"block.{k - 1}", parameters=(f"block.{k - 1}.weight",))
        rows.append(layer)
    tensors = [
        Tensor(f"{layer.name}.out", k, (k + 1,), tuple(float(at[k].output_bytes) for at in layers), kept_by=(k + 1,))
        for k, layer in enumerate(rows[:-1])
    ]
    words = Tensor("tokens", -1, (0,), tuple(8.0 * size * model.sequence for size in microbatch_sizes), gradient=False)
    labels = Tensor("labels", -1, (len(rows) - 1,), words.size_bytes, gradient=False)
    return ModelProfile(
        name=model.name,
        device_type=device.name,
        microbatch_sizes=tuple(microbatch_sizes),
        layers=tuple(rows),
        tensors=(words, labels, *tensors),
        optimizer="Adam",
        ties=((0, len(rows) - 1),) if model.tied else (),
        source=f"worked out for {device.name}",
        notes=(f"calibrated by {calibration.source}",) if calibration else (),
        dtype=precision.dtype,
        tensor=tensor,
        sequence_parallel=sequence_parallel,
    )


@dataclass(frozen=True)
class _Figures:
    """A block's figures for one microbatch size, recomputation included."""

    forward_s: float
    backward_s: float
    stash_bytes: float
    working_bytes: float
    flops: float


def _figures(
    block: BlockCost, device: DeviceType, precision: Precision, recompute: str, calibration: Calibration | None
) -> _Figures:
    forth, back = (calibration.forward, calibration.backward) if calibration else (None, None)
    forward_s = calibrated_s(block.forward, device, precision.dtype, forth)
    adding = (MemoryPass(block.parameters * precision.adding_bytes),) if precision.adding_bytes else ()
    backward_s = calibrated_s((*block.backward, *adding), device, precision.dtype, back)
    stash, working = block.stash_bytes, block.working_bytes
    if recompute == "selective" and block.again:
        backward_s += calibrated_s(block.again, device, precision.dtype, forth)
        stash, working = stash - block.again_bytes, working + block.again_bytes
    elif recompute == "full" and block.kind == "block":
        backward_s += forward_s
        stash, working = block.output_bytes, working + stash - block.output_bytes
    return _Figures(forward_s, backward_s, stash, working, flops_of(block.forward))


def _layer(
    blocks: Sequence[BlockCost],
    own: Sequence[_Figures],
    model: Transformer,
    precision: Precision,
    device: DeviceType,
    tensor: int,
    again: bool,
    slower: float,
) -> Layer:
    block = blocks[0]
    parameters: tuple[str, ...] = (f"{block.kind}.weight",)
    count = block.parameters
    if block.kind == "output" and model.tied:
        parameters = (*parameters, "embedding.weight")
        count += model.vocabulary * model.hidden / tensor
    return Layer(
        name=block.kind,
        kind=block.kind,
        forward_s=tuple(one.forward_s for one in own),
        backward_s=tuple(one.backward_s for one in own),
        stash_bytes=tuple(one.stash_bytes for one in own),
        working_bytes=tuple(one.working_bytes for one in own),
        parameters=parameters,
        weights_bytes=count * precision.weight_bytes,
        gradients_bytes=count * precision.gradient_bytes,
        optimizer_bytes=count * precision.optimizer_bytes,
        step_s=slower * moving_s(count * precision.step_bytes, device),
        copy_s=moving_s(2 * count * precision.weight_bytes, device),
        flops=tuple(one.flops for one in own),
        reduced_bytes=tuple(one.reduced_bytes for one in blocks) if any(block.reductions) else (),
        reductions=_ways(block.reductions, again),
        gathered_bytes=tuple(one.gathered_bytes for one in blocks) if any(block.gathers) else (),
        gathers=_ways(block.gathers, again),
        notes=(RANDOM,) if model.dropout and block.kind != "output" else (),
    )


def _ways(once: tuple[int, int], again: bool) -> tuple[int, int]:
    forward, backward = once
    return forward, backward + (forward if again else 0)
