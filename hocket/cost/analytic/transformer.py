"""Analytic profile of a transformer on a device type, without measurement.

Rules of this file: nothing is allocated and nothing runs. Figures are those of one of `tensor` devices, without the
reductions among these, because reductions depend on the links (`Layer.reductions` and `Layer.gathers` count them). The
head of `cost/kernels.py` describes the cost of operators, `profiling/analytic/transformer_blocks.py` the operators of a
block.
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
    """Bytes of a parameter's weight, gradient and optimizer state, and of its step.

    The default is training in 16 bits with exact gradients, an exact copy of the weights, and Adam's two moments. A
    step reads the gradient twice (once for its norm), reads and writes the three exact numbers, and writes the weight.
    A microbatch's gradient is added to the gradients before it when it is computed. If that is a separate pass
    (Megatron-LM, `main_grad.add_`), it moves `adding_bytes`.
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
    """Estimate the profile of a model on one of `tensor` tensor-parallel devices.

    Arguments:
        sequence_parallel: True if blocks work on slices of the sequence, except between column- and row-parallel
            layers.
        recompute: recomputation inside of every block: "none"; "selective" for the tensors of attention between scores
            and values; "full" for everything but the block's input (Narayanan's dissertation, section 4.3.5).
        precision: bytes of each parameter.
        calibration: factors of the device type, fitted to a measured profile.
        microbatch_sizes: samples of a microbatch, for each entry of the profile.

    Raises:
        InputError: `tensor` does not divide the model, `recompute` is unknown, the device type has no rate for the data
            type, or the calibration is for another device type.
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
