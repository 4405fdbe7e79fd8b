"""Proof that a divided block computes the same as the whole block.

Rules of this file: a block is proved by running it on simulated devices in one process (threaded_group.py), in
float64. Its outputs, and the gradients of its inputs and of every weight, must equal those of the undivided block. A
sliced tensor must equal the device's slice.
"""

import copy
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from hocket.errors import RefusedError
from hocket.profiling.analytic.block_calls import BlockCall
from hocket.profiling.tensor_parallel.dropout import Dice, Draw, divided_draws, draws_of
from hocket.profiling.tensor_parallel.group import SingleRank, TensorParallelGroup
from hocket.profiling.tensor_parallel.sharded_modules import cuts_in_block, divide_block, part_of
from hocket.profiling.tensor_parallel.split import BlockSplit, Cut, DividedDraws, DividedPart, Sliced
from hocket.profiling.tensor_parallel.threaded_group import ThreadedGroup

_Slice = Callable[[Tensor], Tensor]
TOLERANCE = 1e-9  # relative tolerance for float64, see `differs`


@dataclass(frozen=True)
class _Run:
    """Results of one forward and backward of a block.

    Attributes:
        outputs: output tensors that receive a gradient, by their number among the leaves of the results.
        inputs: gradients of inputs, by number among the leaves of the arguments.
        weights: gradients of parameters, by name.
    """

    outputs: dict[int, Tensor]
    inputs: dict[int, Tensor]
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class Inequality:
    """A difference from the undivided block, or a failure to run.

    Attributes:
        text: description for the user.
        weight: name of the weight with a differing gradient; "" otherwise.
    """

    text: str
    weight: str = ""

    @property
    def is_a_difference(self) -> bool:
        """True if the divided block gave tensors of the right shapes with other values."""
        return " differs by " in self.text


class Proof:
    """Runner of one block, whole and divided, on the arguments of one call."""

    def __init__(self, block: nn.Module, call: BlockCall) -> None:
        self.block, self.call = block, call
        if any(t.is_meta for t in (*block.parameters(), *block.buffers())):
            raise RefusedError(
                "model", "tensors without values (on meta)", "a model on a device: the split is proved by running it"
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
        """Copy of the block on the CPU in float64; all copies share their weights."""
        memo: dict[int, Any] = dict(self._weights)
        for buffer in self.block.buffers():
            memo[id(buffer)] = buffer.cpu().double() if buffer.is_floating_point() else buffer.cpu().clone()
        return copy.deepcopy(self.block, memo).eval()

    def _run(self, block: nn.Module, dropout: bool, sliced: Sliced | None = None, own: _Slice = torch.clone) -> _Run:
        """Run forward and backward, with fixed random gradients of the outputs.

        Arguments:
            block: the whole block, or one rank's part of it.
            dropout: True to run in training mode, with dropout from a fixed seed.
            sliced: sequence-parallel form; None if hidden states are whole.
            own: function from a whole hidden state to the rank's slice of it. Without `sliced` it is not called.
        """
        inputs = sliced.inputs if sliced else ()
        args, kwargs, leaves = self.call.fresh(cut=lambda i, x: own(x) if i in inputs else x)
        with Dice(2) if dropout else nullcontext():
            outputs = block.train(dropout)(*args, **kwargs)
        made = {i: x for i, x in enumerate(tree_leaves(outputs)) if i in self.call.used}
        draw = torch.Generator().manual_seed(1)
        shapes = {i: x.shape for i, x in (made if sliced is None else self._whole[dropout].outputs).items()}
        arriving = {i: torch.randn(shape, generator=draw, dtype=torch.float64) for i, shape in shapes.items()}
        arriving = {i: own(x) if sliced and i in sliced.outputs else x for i, x in arriving.items()}
        weights = dict(block.named_parameters())
        sources = [*leaves, *weights.values()]
        found = torch.autograd.grad(
            list(made.values()), sources, [arriving[i] for i in made], allow_unused=True
        )  # fmt: skip
        found = tuple(torch.zeros_like(x) if g is None else g for x, g in zip(sources, found, strict=True))
        gradients = found[len(leaves) :]
        return _Run(
            {i: x.detach() for i, x in made.items()},
            dict(zip(self._leaves, found, strict=False)),
            dict(zip(weights, gradients, strict=True)),
        )

    @property
    def _leaves(self) -> list[int]:
        """Indices, in pytree order, of the argument leaves that need gradients."""
        given = tree_leaves((self.call.args, self.call.kwargs))
        return [
            i
            for i, (x, needed) in enumerate(zip(given, self.call.needs, strict=True))
            if needed and isinstance(x, Tensor) and x.is_floating_point()
        ]

    def whole(self, dropout: bool = False) -> "_Run":
        """Results of the undivided block, computed once for each value of `dropout`."""
        if dropout not in self._whole:
            self._whole[dropout] = self._run(self.copy(), dropout)
        return self._whole[dropout]

    def shapes(self) -> tuple[dict[int, torch.Size], dict[int, torch.Size]]:
        """Shapes of argument tensors, and of outputs with gradients, by leaf number."""
        given = enumerate(tree_leaves((self.call.args, self.call.kwargs)))
        arguments = {i: x.shape for i, x in given if isinstance(x, Tensor) and x.is_floating_point()}
        return arguments, {i: x.shape for i, x in self.whole().outputs.items()}

    def draws(
        self, parts: tuple[DividedPart, ...], width: int, sliced: Sliced | None = None
    ) -> tuple[DividedDraws, ...]:
        """Find the dropout masks that are divided over the devices.

        Raises:
            ValueError: the divided block draws other random numbers than the whole block, or the shape of a mask is
                divided in more than one dimension.
        """
        block = self._divided(parts, width, 0, SingleRank(), sliced)
        own = _slice_of(sliced, width, 0)
        inputs = sliced.inputs if sliced else ()
        whole, after = self._drawn(self.copy().train(), lambda i, x: x)
        divided, then = self._drawn(block.train(), lambda i, x: own(x) if i in inputs else x)
        if not torch.equal(after, then) or len(whole) != len(divided):
            raise ValueError("random numbers other than those of dropout")
        return tuple(DividedDraws(path, dims) for path, dims in divided_draws(whole, divided, width).items())

    def _divided(
        self, parts: tuple[DividedPart, ...], width: int, rank: int, members: TensorParallelGroup, sliced: Sliced | None
    ) -> nn.Module:
        block = self.copy()
        divide_block(block, BlockSplit((), parts, {}, sliced), width, rank, members)
        return block

    def _drawn(self, block: nn.Module, cut: Callable[[int, Tensor], Tensor]) -> tuple[tuple[Draw, ...], Tensor]:
        args, kwargs, _ = self.call.fresh(cut=cut)
        return draws_of(block, lambda: block(*args, **kwargs))

    def problem(
        self, parts: tuple[DividedPart, ...], width: int, dropout: bool = False, sliced: Sliced | None = None
    ) -> Inequality | None:
        """First difference between the divided and the whole block; None if equal.

        Arguments:
            parts: the divided parts of the block.
            dropout: True to run with dropout as in training, False to run as in evaluation.
            sliced: sequence-parallel form to test; None for whole hidden states.
        """
        whole = self.whole(dropout)

        def one(rank: int, members: TensorParallelGroup) -> _Run:
            own = _slice_of(sliced, width, rank)
            return self._run(self._divided(parts, width, rank, members, sliced), dropout, sliced, own)

        try:
            runs = ThreadedGroup(width).run(one)
        except Exception as error:  # a model may raise anything on sizes that it was not made for
            return Inequality(told(error))
        cuts = cuts_in_block(self.block, parts)
        outputs, inputs = (sliced.outputs, sliced.inputs) if sliced else ((), ())
        for rank, run in enumerate(runs):
            own = _slice_of(sliced, width, rank)
            expected = {n: part_of(g, cuts[n], width, rank) if n in cuts else g for n, g in whole.weights.items()}
            problem = (
                differs("output", _sliced(whole.outputs, outputs, own), run.outputs)
                or differs("gradient of input", _sliced(whole.inputs, inputs, own), run.inputs)
                or differs("gradient of", expected, run.weights)
            )
            if problem is not None:
                return problem
        return None


def _slice_of(sliced: Sliced | None, width: int, rank: int) -> _Slice:
    return torch.clone if sliced is None else lambda whole: part_of(whole, Cut(sliced.dim), width, rank).clone()


def _sliced(whole: Mapping[int, Tensor], which: tuple[int, ...], own: _Slice) -> dict[int, Tensor]:
    return {i: own(x) if i in which else x for i, x in whole.items()}


def told(error: Exception) -> str:
    """Describe an error of the user's code in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200] if str(error) else type(error).__name__


def differs(
    what: str, expected: Mapping[Any, Tensor], found: Mapping[Any, Tensor], tolerance: float = TOLERANCE
) -> Inequality | None:
    """Return the first difference of two sets of tensors; None within the tolerance.

    The tolerance of a tensor is relative to its largest expected absolute value, or to 1e-3 of the largest value of
    all expected tensors, if that is more.

    Arguments:
        what: kind of the tensors, for the description.
    """
    if expected.keys() != found.keys():
        return Inequality(f"{what}: {len(found)} tensors instead of {len(expected)}")
    largest = max((float(x.abs().max()) for x in expected.values() if x.numel()), default=0.0)
    for name, x in expected.items():
        y = found[name]
        if x.shape != y.shape:
            return Inequality(f"{what} {name} has the shape {tuple(y.shape)} instead of {tuple(x.shape)}")
        if x.numel():
            scale = max(float(x.abs().max()), 1e-3 * largest)
            difference = float((x - y).abs().max())
            if not difference <= tolerance * scale:
                text = f"{what} {name} differs by {difference / scale if scale else difference:.1g}"
                return Inequality(text, name if isinstance(name, str) else "")
    return None
