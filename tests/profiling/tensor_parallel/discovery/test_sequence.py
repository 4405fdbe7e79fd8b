"""Sequence parallelism of unedited models, found and proved."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hocket.profiling.capture.capture import Stage, capture
from hocket.profiling.capture.storage_tracker import storage_key
from hocket.profiling.job.job import Job
from hocket.profiling.tensor_parallel.discovery.blocks import find_split
from hocket.profiling.tensor_parallel.discovery.sequence import with_slices
from hocket.profiling.tensor_parallel.group import TensorParallelGroup
from hocket.profiling.tensor_parallel.module_rules import Shared, SizeClaims
from hocket.profiling.tensor_parallel.sequence_parallel import SequenceSlice
from hocket.profiling.tensor_parallel.sharded_modules import divide
from hocket.profiling.tensor_parallel.split import CollectiveCounts, DividedDraws, Sliced, TensorSplit
from hocket.profiling.tensor_parallel.threaded_group import ThreadedGroup
from tests.profiling.helpers.transformers_of import NAMES, logits_of, model_of
from tests.profiling.tensor_parallel.discovery.test_blocks import BLOCKS, Noise, Pair, in_rows

ASKING = {
    "gpt": ("attn", "mlp"),
    "gpt2": ("attn", "mlp"),
    "bert": ("attention.self", "intermediate"),
    "llama": ("self_attn", "mlp"),
}
NORMS = {
    "gpt": ("ln1", "ln2"),
    "gpt2": ("ln_1", "ln_2"),
    "bert": ("attention.output.LayerNorm", "output.LayerNorm"),
    "llama": ("input_layernorm", "post_attention_layernorm"),
}

RETURNING = "gpt2 eager"  # returns the result of every block, if asked


def test_a_claimed_size_is_that_of_the_whole_sequence() -> None:
    """A module is told the length of the whole sequence, and its own part of the features.

    An input without the sliced dimension keeps its other sizes.
    """

    def claimed(rank: int, members: TensorParallelGroup) -> list[tuple[int, ...]]:
        claims = SizeClaims(8, narrower=2, along=SequenceSlice(1, 2, rank, members))
        return [tuple(claims.of(torch.Size(own))) for own in ((3, 2, 8), (3, 8), (8,))]

    assert ThreadedGroup(2).run(claimed) == [[(3, 4, 4), (3, 8), (4,)]] * 2


def sliced_split(model: nn.Module, width: int, *args: Any, **kwargs: Any) -> TensorSplit:
    """Find the split, then its sequence-parallel form."""
    return with_slices(model, find_split(model, width, *args, **kwargs), *args, **kwargs)


@pytest.mark.parametrize("name", NAMES)
def test_slices_of_a_transformer(name: str) -> None:
    """A transformer is sliced along its second dimension.

    Norms are summed, attention and MLP see the size of the whole, and blocks pass slices from the first to the last.
    The model is unchanged.
    """
    model, args, kwargs = model_of(name)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    split = sliced_split(model, 2, *args, **kwargs)
    kind = name.split()[0]
    weights = ("weight",) if kind == "llama" else ("weight", "bias")
    summed = tuple(f"{norm}.{key}" for norm in NORMS[kind] for key in weights)
    (block,) = split.blocks
    assert block.sliced == Sliced(1, (0,), (0,), ASKING[kind], summed)
    assert block.unsliced == ""
    assert split.runs == (tuple(f"{BLOCKS[kind]}.{k}" for k in range(2)),)
    assert split.collectives.scatters == CollectiveCounts(4, 4)
    assert split.collectives.gathers == CollectiveCounts(4 + 1, 4 + 4 + 1)
    assert split.collectives.all_reduces == CollectiveCounts(0, 4)
    assert TensorSplit.read(json.loads(json.dumps(split.as_data()))) == split
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    assert all(m.training and not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_dropout_of_slices(name: str) -> None:
    """Each device draws its part of every mask.

    Heads of attention masks, positions of masks after a row.
    """
    model, args, kwargs = model_of(name, dropout=0.2)
    (block,) = sliced_split(model, 2, *args, **kwargs).blocks
    assert block.sliced is not None
    assert len(block.sliced.draws) == (1 if name.startswith("llama") else 2 if name == "gpt" else 3)
    assert all(set(draws.dims) == {1} for draws in block.sliced.draws)


def losses(model: nn.Module, split: TensorSplit, args: Any, kwargs: Any) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """Losses and gradients of the whole model, then of each simulated device.

    A loss is the sum of squares of the outputs. Gradients are of whole weights.
    """

    def run(one: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
        loss = logits_of(one(*args, **kwargs)).square().sum()
        weights = dict(one.named_parameters())
        found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        return loss.detach(), {n: g for n, g in zip(weights, found, strict=True) if g is not None}

    def divided(rank: int, members: TensorParallelGroup) -> tuple[Tensor, dict[str, Tensor]]:
        one, _, _ = model_of(RETURNING)
        one.load_state_dict(model.state_dict())
        divide(one, split, rank, members)
        return run(one.eval())

    return [run(model.eval()), *ThreadedGroup(split.width).run(divided)]


def test_results_between_blocks_that_are_read_elsewhere() -> None:
    """Results that are read between blocks are whole.

    Each block then takes and gathers its own slices, and all results are equal.
    """
    model, _, kwargs = model_of(RETURNING)
    kwargs = {**kwargs, "output_hidden_states": True}
    split = sliced_split(model, 2, **kwargs)
    assert split.runs == (("transformer.h.0",), ("transformer.h.1",))
    (expected, gradients), *found = losses(model, split, (), kwargs)
    for loss, own in found:
        assert torch.allclose(loss, expected, rtol=1e-12)
        for name, gradient in own.items():
            if gradient.shape == gradients[name].shape:
                assert torch.allclose(gradient, gradients[name], rtol=1e-9, atol=1e-9), name


class Running(Pair):
    """A block that mixes positions where hidden states are slices."""

    def forward(self, x: Tensor) -> Tensor:
        """(samples, seq, 8) to the same."""
        return super().forward(x.cumsum(1))


def test_blocks_that_mix_positions_stay_whole() -> None:
    """Blocks that mix positions stay whole, with the reason.

    Blocks before and after pass slices up to them.
    """
    model = in_rows(Pair(nn.GELU()), Pair(nn.GELU()), Running(nn.GELU()), Pair(nn.GELU()))
    split = sliced_split(model, 2, torch.randn(2, 6, 8))
    assert split.runs == (("0", "1"), ("3",))
    plain, mixing = split.blocks
    assert (plain.paths, mixing.paths) == (("0", "1", "3"), ("2",))
    assert plain.sliced is not None
    assert mixing.sliced is None
    assert "differs by" in mixing.unsliced
    assert split.collectives.scatters == CollectiveCounts(3, 3)
    assert split.collectives.all_reduces == CollectiveCounts(1, 1)


@pytest.mark.parametrize("shape", [(2, 5, 8), (4, 8)])
def test_what_has_no_positions_to_divide(shape: tuple[int, ...]) -> None:
    """Refused: five positions for two devices, or samples without positions."""
    split = sliced_split(in_rows(Pair(nn.GELU())), 2, torch.randn(shape))
    assert split.runs == ()
    assert split.blocks[0].unsliced == "no dimension of positions that 2 divides"
    assert split.collectives == find_split(in_rows(Pair(nn.GELU())), 2, torch.randn(shape)).collectives


def test_positions_that_come_first() -> None:
    """Positions may come first: a run with one sample shows the samples' dimension."""

    class Turning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = in_rows(Pair(nn.GELU()), Pair(nn.GELU()))

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.blocks(x.transpose(0, 1)).transpose(0, 1)
            return found

    (block,) = sliced_split(Turning(), 2, torch.randn(2, 6, 8)).blocks
    assert block.sliced is not None
    assert block.sliced.dim == 0


class Ended(nn.Module):
    """A block with a module after its row."""

    def __init__(self, end: nn.Module) -> None:
        super().__init__()
        self.pair, self.end = Pair(nn.GELU()), end

    def forward(self, x: Tensor) -> Tensor:
        """(samples, seq, 8) to the same."""
        found: Tensor = self.end(self.pair(x))
        return found


def test_what_stands_behind_a_row() -> None:
    """An undivided matrix after a row gets a summed gradient.

    Random numbers other than dropout keep the block whole, with the reason.
    """
    block = sliced_split(in_rows(Ended(nn.Linear(8, 8))), 2, torch.randn(2, 6, 8)).blocks[0]
    assert block.sliced is not None
    assert block.sliced.summed == ("end.weight", "end.bias")
    dropping = sliced_split(in_rows(Ended(nn.Dropout(0.3))), 2, torch.randn(2, 6, 8)).blocks[0]
    assert dropping.sliced is not None
    assert dropping.sliced.draws == (DividedDraws("end", (1,)),)
    noisy = sliced_split(in_rows(Ended(Noise())), 2, torch.randn(2, 6, 8))
    assert noisy.blocks[0].unsliced == "random numbers other than those of dropout"


@pytest.mark.parametrize("width", [2, 4])
def test_what_blocks_keep_is_a_part(width: int) -> None:
    """Each device keeps its part of a block's saved activations, without weights.

    Korthikanti et al. 2022, equation 4.
    """
    model, args, kwargs = model_of("gpt")
    split = sliced_split(model, width, *args, **kwargs)

    def kept(one: nn.Module) -> int:
        weights = {storage_key(p) for p in one.parameters()}
        found: dict[int, int] = {}

        def keep(x: Tensor) -> Tensor:
            if storage_key(x) not in weights and x.is_floating_point():
                found[storage_key(x)] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            y = one.get_submodule("blocks")[0](x)  # type: ignore[index]
            assert y.requires_grad
        return sum(found.values())

    x = torch.randn(2, 12, 16, dtype=torch.float64, requires_grad=True)
    whole = kept(model)
    x = torch.randn(2, 12 // width, 16, dtype=torch.float64, requires_grad=True)

    def divided(rank: int, members: TensorParallelGroup) -> int:
        one, _, _ = model_of("gpt")
        divide(one, TensorSplit(width, split.blocks), rank, members)
        return kept(one)

    assert ThreadedGroup(width).run(divided) == [whole // width] * width


def test_columns_of_two_stages_keep_nothing() -> None:
    """A stage with some of the columns of one tensor does not wait for the others."""
    model, _, _ = model_of("llama sdpa")
    tokens = torch.randint(0, 32, (4, 12))
    job = Job(model, None, [{"input_ids": t, "labels": t} for t in tokens], torch.optim.SGD, 2)
    whole = capture(job)
    names = [layer.name for layer in whole.layers]
    cut = next(k for k, name in enumerate(names) if name.endswith("layers.0.self_attn.k_proj"))
    args, kwargs, _, _ = job.split(job.batch([0, 1]))
    divide(model, find_split(model, 2, *args, **kwargs), 0, ThreadedGroup(1).run(lambda _, members: members)[0])
    graph = capture(job, like=whole)
    values = {graph.batch_names[key]: tensor for key, tensor in job.batch([0, 1]).items()}
    for layers in (range(cut), range(cut, len(names))):
        stage = Stage(graph, layers)
        values.update(stage.run({name: values[name] for name in stage.inputs}))
        shared = {m._shared for copy in stage._copies.values() for m in copy.modules() if hasattr(m, "_shared")}
        assert shared
        assert all(isinstance(one, Shared) and one._given is None and one._whole is None for one in shared)
