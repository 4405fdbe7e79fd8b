"""Proof: whether a divided block does what the whole one does.

Rules of this file: a block is proved by trying, on simulated devices in one process (together.py): output, gradients of
the input and of every weight must be those of the undivided block, in float64.
"""

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from hocket.errors import RefusedError
from hocket.profile.block_calls import BlockCall
from hocket.profile.divided import cuts_in_block, divide_part, part_of
from hocket.profile.draws import Dice, Draw, divided_draws, draws_of
from hocket.profile.tensor_split import DividedDraws, DividedPart
from hocket.profile.together import Together
from hocket.profile.traits import Sum

TOLERANCE = 1e-9  # of float64, relative to the largest number of the same kind


@dataclass(frozen=True)
class _Run:
    """What a run of a block gave: its outputs, the gradients of its inputs, and those of its parameters by name."""

    outputs: list[Tensor]
    inputs: list[Tensor]
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class Problem:
    """What is not equal, or does not run; `weight` is the name of the weight whose gradient it is about."""

    text: str
    weight: str = ""

    @property
    def is_a_difference(self) -> bool:
        """Whether it ran, and gave something else."""
        return " differs by " in self.text


class Proof:
    """Runs one block, whole and divided, on the arguments of one call."""

    def __init__(self, block: nn.Module, call: BlockCall) -> None:
        self.block, self.call = block, call
        if any(t.is_meta for t in (*block.parameters(), *block.buffers())):
            raise RefusedError(
                "model", "tensors without numbers (on meta)", "a model on a device: a split is proved by trying"
            )
        draw = torch.Generator().manual_seed(0)
        # Biases that are zero and norms that are one would hide mistakes.
        self._weights = {
            id(p): (
                p.detach().cpu().double() + 0.02 * torch.randn(p.shape, generator=draw, dtype=torch.float64)
            ).requires_grad_()
            for p in block.parameters()
            if p.is_floating_point()
        }
        self._whole: dict[bool, _Run] = {}

    def copy(self) -> nn.Module:
        """The block on the CPU in float64, with weights that all copies share."""
        memo: dict[int, Any] = dict(self._weights)
        for buffer in self.block.buffers():
            memo[id(buffer)] = buffer.cpu().double() if buffer.is_floating_point() else buffer.cpu().clone()
        return copy.deepcopy(self.block, memo).eval()

    def _run(self, block: nn.Module, dropout: bool) -> _Run:
        args, kwargs, leaves = self.call.fresh()
        with Dice(2) if dropout else nullcontext():
            outputs = block.train(dropout)(*args, **kwargs)
        made = [x for i, x in enumerate(tree_leaves(outputs)) if i in self.call.used]
        draw = torch.Generator().manual_seed(1)
        arriving = [torch.randn(x.shape, generator=draw, dtype=x.dtype) for x in made]
        weights = dict(block.named_parameters())
        sources = [*leaves, *weights.values()]
        found = torch.autograd.grad(made, sources, arriving, allow_unused=True)
        found = tuple(torch.zeros_like(x) if g is None else g for x, g in zip(sources, found, strict=True))
        inputs, gradients = list(found[: len(leaves)]), found[len(leaves) :]
        return _Run([x.detach() for x in made], inputs, dict(zip(weights, gradients, strict=True)))

    def draws(self, part: DividedPart, width: int) -> tuple[DividedDraws, ...]:
        """The dropout masks of which every device draws a part.

        Raises:
            ValueError: other random numbers are drawn in the divided part.
        """
        block = self._part((part,), width, 0, torch.clone)
        (whole, after), (divided, then) = (self._drawn(one.train()) for one in (self.copy(), block))
        if not torch.equal(after, then) or len(whole) != len(divided):
            raise ValueError("random numbers other than those of dropout")
        return tuple(DividedDraws(path, dims) for path, dims in divided_draws(whole, divided, width).items())

    def _part(self, parts: tuple[DividedPart, ...], width: int, rank: int, total: Sum) -> nn.Module:
        block = self.copy()
        for part in parts:
            divide_part(block, part, width, rank, total)
        return block

    def _drawn(self, block: nn.Module) -> tuple[tuple[Draw, ...], Tensor]:
        args, kwargs, _ = self.call.fresh()
        return draws_of(block, lambda: block(*args, **kwargs))

    def problem(self, parts: tuple[DividedPart, ...], width: int, dropout: bool = False) -> Problem | None:
        """What is wrong when the block is divided like this; None when all is equal.

        Arguments:
            dropout: as in training; otherwise as in evaluation.
        """

        def one(rank: int, total: Sum) -> _Run:
            return self._run(self._part(parts, width, rank, total), dropout)

        if dropout not in self._whole:
            self._whole[dropout] = self._run(self.copy(), dropout)
        whole = self._whole[dropout]

        try:
            runs = Together(width).run(one)
        except Exception as error:  # whatever a model does with sizes that it was not made for
            return Problem(told(error))
        cuts = cuts_in_block(self.block, parts)
        for rank, run in enumerate(runs):
            expected = {n: part_of(g, cuts[n], width, rank) if n in cuts else g for n, g in whole.weights.items()}
            problem = (
                _differs("output", dict(enumerate(whole.outputs)), dict(enumerate(run.outputs)))
                or _differs("gradient of input", dict(enumerate(whole.inputs)), dict(enumerate(run.inputs)))
                or _differs("gradient of", expected, run.weights)
            )
            if problem is not None:
                return problem
        return None


def told(error: Exception) -> str:
    """An error of somebody else's code, in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200] if str(error) else type(error).__name__


def _differs(what: str, expected: Mapping[Any, Tensor], found: Mapping[Any, Tensor]) -> Problem | None:
    if expected.keys() != found.keys():
        return Problem(f"{what}: {len(found)} tensors instead of {len(expected)}")
    largest = max((float(x.abs().max()) for x in expected.values() if x.numel()), default=0.0)
    for name, x in expected.items():
        y = found[name]
        if x.shape != y.shape:
            return Problem(f"{what} {name} has the shape {tuple(y.shape)} instead of {tuple(x.shape)}")
        if x.numel():
            scale = max(float(x.abs().max()), 1e-3 * largest)
            difference = float((x - y).abs().max())
            if not difference <= TOLERANCE * scale:
                text = f"{what} {name} differs by {difference / scale if scale else difference:.1g}"
                return Problem(text, name if isinstance(name, str) else "")
    return None
