"""Analytic profile of a transformer on a device type, without measurement.

Rules of this file: nothing is allocated and nothing runs. Seconds and bytes are for one rank of a tensor-parallel
group, without all-reduces and gathers inside the group, because these depend on the links (`Layer.reductions` and
`Layer.gathers` count them). The head of `cost/kernels.py` describes the cost of operators,
`profiling/analytic/transformer_blocks.py` the operators of a block.
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
    """Bytes of one parameter: weight, gradient, optimizer state and memory traffic.

    The default is mixed-precision training: 16-bit weights, 32-bit gradients, a 32-bit copy of the weights, and Adam's
    two moments in 32 bits.

    Attributes:
        dtype: data type of the weights.
        weight_bytes, gradient_bytes, optimizer_bytes: bytes in memory.
        step_bytes: bytes that a step reads and writes. By default it reads the gradient twice (once for its norm),
            reads and writes the three 32-bit numbers, and writes the weight.
        adding_bytes: bytes that are read and written to add a microbatch's gradient to the gradients before it, if
            this is a separate pass (Megatron-LM, `main_grad.add_`); else 0.
    """

    dtype: str = "float16"
    weight_bytes: float = 2
    gradient_bytes: float = 4
    optimizer_bytes: float = 12
    step_bytes: float = 34
    adding_bytes: float = 0

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


@dataclass(frozen=True)
class BlockExecution:
    """Execution of a model's blocks by the ranks of a tensor-parallel group.

    Attributes:
        tensor: number of ranks.
        recompute: recomputation inside every block: "none"; "selective" for the tensors of attention between scores
            and values; "full" for everything but the block's input (Narayanan's dissertation, section 4.3.5).
        sequence_parallel: True if each rank of the group works on a slice of the sequence, except between column- and
            row-parallel layers.
    """

    tensor: int = 1
    recompute: str = "none"
    sequence_parallel: bool = False

    def check(self, model: Transformer) -> None:
        """Refuse an unknown `recompute`, or ranks that do not divide the sequence.

        Raises:
            InputError: `recompute` is unknown; or blocks are sequence parallel, and the group has one rank, or its
                ranks do not divide the sequence.
        """
        if self.sequence_parallel and (self.tensor == 1 or model.sequence % self.tensor):
            raise InputError(
                "sequence_parallel",
                f"a sequence of {model.sequence} for {self.tensor} devices",
                "two or more devices, in a number that divides the sequence",
            )
        if self.recompute not in RECOMPUTE:
            raise InputError("recompute", repr(self.recompute), f"one of {', '.join(RECOMPUTE)}")


def analytic(
    model: Transformer,
    device: DeviceType,
    execution: BlockExecution = BlockExecution(),
    *,
    precision: Precision = Precision(),
    calibration: Calibration | None = None,
    microbatch_sizes: Sequence[int] = (1, 2, 4, 8),
) -> ModelProfile:
    """Estimate the profile of a model on one tensor-parallel rank.

    Arguments:
        execution: tensor-parallel size, recomputation and sequence parallelism of the blocks.
        precision: bytes of each parameter.
        calibration: factors of the device type, fitted to a measured profile; None for 1.
        microbatch_sizes: microbatch sizes of the profile, in samples.

    Raises:
        InputError: the tensor-parallel size does not divide the model or its sequence, the recomputation is unknown,
            the device type has no rate for the data type, or the calibration is for another device type.
    """
    execution.check(model)
    check_rate(device, precision.dtype)
    if calibration is not None:
        calibration.check(device)
    rank = _RankCosts(model, device, execution, precision, calibration)
    layers = [blocks_of(model, size, execution.tensor, execution.sequence_parallel) for size in microbatch_sizes]
    known: dict[str, Layer] = {}
    rows: list[Layer] = []
    for k, each in enumerate(zip(*layers, strict=True)):
        kind = each[0].kind
        if kind not in known:
            known[kind] = rank.layer(each)
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
        tensor=execution.tensor,
        sequence_parallel=execution.sequence_parallel,
    )


@dataclass(frozen=True)
class _Figures:
    """Costs of one layer for one microbatch size, recomputation included."""

    forward_s: float
    backward_s: float
    stash_bytes: float
    working_bytes: float
    flops: float


@dataclass(frozen=True)
class _RankCosts:
    """Costs of a model's layers on one tensor-parallel rank."""

    model: Transformer
    device: DeviceType
    execution: BlockExecution
    precision: Precision
    calibration: Calibration | None

    def layer(self, blocks: Sequence[BlockCost]) -> Layer:
        """Build a layer of the profile from its costs for each microbatch size."""
        block, precision, device = blocks[0], self.precision, self.device
        own = [self._figures(one) for one in blocks]
        again = self.execution.recompute == "full" and block.kind == "block"
        slower = self.calibration.step if self.calibration else 1.0
        parameters: tuple[str, ...] = (f"{block.kind}.weight",)
        count = block.parameters
        if block.kind == "output" and self.model.tied:
            parameters = (*parameters, "embedding.weight")
            count += self.model.vocabulary * self.model.hidden / self.execution.tensor
        notes = (RANDOM,) if self.model.dropout and block.kind != "output" else ()
        if again or (self.execution.recompute == "selective" and block.again):
            notes = (*notes, f"{AGAIN}{self.execution.recompute}")
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
            notes=notes,
        )

    def _figures(self, block: BlockCost) -> _Figures:
        precision, recompute = self.precision, self.execution.recompute
        forth, back = (self.calibration.forward, self.calibration.backward) if self.calibration else (None, None)
        forward_s = calibrated_s(block.forward, self.device, precision.dtype, forth)
        adding = (MemoryPass(block.parameters * precision.adding_bytes),) if precision.adding_bytes else ()
        backward_s = calibrated_s((*block.backward, *adding), self.device, precision.dtype, back)
        stash, working = block.stash_bytes, block.working_bytes
        if recompute == "selective" and block.again:
            backward_s += calibrated_s(block.again, self.device, precision.dtype, forth)
            stash, working = stash - block.again_bytes, working + block.again_bytes
        elif recompute == "full" and block.kind == "block":
            backward_s += forward_s
            stash, working = block.output_bytes, working + stash - block.output_bytes
        return _Figures(forward_s, backward_s, stash, working, flops_of(block.forward))


def _ways(once: tuple[int, int], again: bool) -> tuple[int, int]:
    forward, backward = once
    return forward, backward + (forward if again else 0)
