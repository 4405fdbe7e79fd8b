"""Tensor-parallel splits of unedited models, found and proved."""

import json

import pytest
import torch
from torch import nn

from hocket.errors import InputError, RefusedError
from hocket.models.resnet import ResNet
from hocket.profiling.tensor_parallel.discovery.blocks import find_split
from hocket.profiling.tensor_parallel.sharded_modules import part_of, whole_of
from hocket.profiling.tensor_parallel.split import CollectiveCounts, Cut, DividedAttribute, DividedDraws, TensorSplit
from tests.profiling.helpers.transformers_of import NAMES, model_of

# Per part: (columns that read one tensor), row, pieces of the first column, divided attributes.
EXPECTED = {
    "gpt": [
        (("attn.qkv",), "attn.proj", 3, (DividedAttribute("attn", "n_head", 4),)),
        (("mlp.up",), "mlp.down", 1, ()),
    ],
    "gpt2": [
        (("attn.c_attn",), "attn.c_proj", 3, (DividedAttribute("attn", "split_size", 16),)),
        (("mlp.c_fc",), "mlp.c_proj", 1, ()),
    ],
    "bert": [
        (
            ("attention.self.query", "attention.self.key", "attention.self.value"),
            "attention.output.dense",
            1,
            (),
        ),
        (("intermediate.dense",), "output.dense", 1, ()),
    ],
    "llama": [
        (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "self_attn.o_proj", 1, ()),
        (("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj", 1, ()),
    ],
}
BLOCKS = {"gpt": "blocks", "gpt2": "transformer.h", "bert": "bert.encoder.layer", "llama": "model.layers"}


@pytest.mark.parametrize("name", NAMES)
def test_the_split_of_a_transformer(name: str) -> None:
    """Attention and MLP of every block are divided, with two all-reduces each way.

    The model is unchanged.
    """
    model, args, kwargs = model_of(name)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    split = find_split(model, 2, *args, **kwargs)
    kind = name.split()[0]
    (block,) = split.blocks
    assert block.paths == (f"{BLOCKS[kind]}.0", f"{BLOCKS[kind]}.1")
    assert block.undivided == {}
    for part, (columns, row, pieces, attributes) in zip(block.parts, EXPECTED[kind], strict=True):
        (group,) = part.columns
        assert tuple(linear.path for linear in group) == columns
        out = 1 if kind == "gpt2" else 0
        assert {linear.cut for linear in group} == {Cut(out, pieces)}
        assert (part.row.path, part.row.cut) == (row, Cut(1 - out))
        assert part.attributes == attributes
        assert part.narrowed == (("attn",) if kind == "gpt" and row == "attn.proj" else ())
    assert split.collectives.all_reduces == CollectiveCounts(4, 4)
    assert TensorSplit.read(json.loads(json.dumps(split.as_data()))) == split
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    assert all(m.training and not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize(("name", "works", "fails"), [("gpt", 4, 3), ("bert sdpa", 4, 3), ("llama sdpa", 2, 4)])
def test_heads_that_the_width_does_not_divide(name: str, works: int, fails: int) -> None:
    """Heads that the width does not divide are refused with a width that works."""
    model, args, kwargs = model_of(name)
    with pytest.raises(RefusedError, match=f"width {fails}") as error:
        find_split(model, fails, *args, **kwargs)
    assert EXPECTED[name.split()[0]][0][1] in error.value.place
    assert str(works) in error.value.expected
    assert find_split(model, works, *args, **kwargs).width == works


def test_features_may_divide_where_heads_do_not() -> None:
    """12 features in 6 heads of 2 are not divided by 4: a head belongs to one device."""
    model, args, kwargs = model_of("gpt", heads=6)  # 24 features
    with pytest.raises(RefusedError, match="such as 2 or 3") as error:
        find_split(model, 4, *args, **kwargs)
    assert "attn.qkv" in error.value.place


class Pair(nn.Module):
    """Two linear layers with a module between them, and a residual connection."""

    def __init__(self, between: nn.Module, fused: int = 1) -> None:
        super().__init__()
        self.up, self.between, self.down = nn.Linear(8, 16 * fused), between, nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(samples, 8) to the same."""
        return x + self.down(self.between(self.up(x)))


class Gate(nn.Module):
    """Gate: one half of the features opens the other.

    The halves are interleaved or consecutive.
    """

    def __init__(self, interleaved: bool) -> None:
        super().__init__()
        self.interleaved = interleaved

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(samples, 2n) to (samples, n)."""
        a, b = (x[..., ::2], x[..., 1::2]) if self.interleaved else x.chunk(2, -1)
        return torch.sigmoid(a) * b


def in_rows(*blocks: nn.Module) -> nn.Module:
    """Return a model of these blocks."""
    return nn.Sequential(*blocks)


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        (nn.LayerNorm(16), r"0\.down\.weight RuntimeError: .*normalized_shape"),
        (nn.Softmax(-1), r"0\.down\.weight output 0 differs"),
    ],
)
def test_what_mixes_features_is_not_divided(between: nn.Module, reason: str) -> None:
    """A norm over divided features is another function, so the part stays whole."""
    with pytest.raises(RefusedError, match=reason):
        find_split(in_rows(Pair(between)), 2, torch.randn(4, 8))


def test_a_weight_that_meets_divided_features_is_summed() -> None:
    """An undivided weight between columns and row gets a summed gradient.

    That is one more all-reduce in the backward.
    """
    split = find_split(in_rows(Pair(nn.PReLU())), 2, torch.randn(4, 8))
    assert split.blocks[0].parts[0].summed == ("between.weight",)
    assert split.collectives.all_reduces == CollectiveCounts(1, 2)


class Telling(Pair):
    """A block that returns its inner features too."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(samples, 8) to the same and to (samples, 16)."""
        inner = self.between(self.up(x))
        return x + self.down(inner), inner


class Listening(nn.Module):
    """A model that uses or ignores the second result of its blocks."""

    def __init__(self, uses: bool) -> None:
        super().__init__()
        self.blocks, self.uses = nn.ModuleList([Telling(nn.GELU())]), uses

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(samples, 8) to (samples,)."""
        x, inner = self.blocks[0](x)
        return x.sum(-1) + inner.sum(-1) if self.uses else x.sum(-1)


def test_results_that_nobody_uses_need_not_be_equal() -> None:
    """Unused results need not be equal, such as attention weights of some heads."""
    assert find_split(Listening(False), 2, torch.randn(4, 8)).collectives.all_reduces == CollectiveCounts(1, 1)
    with pytest.raises(RefusedError, match=r"output 1 has the shape \(4, 8\) instead of \(4, 16\)"):
        find_split(Listening(True), 2, torch.randn(4, 8))


def test_matrices_outside_linear_layers_stay_whole() -> None:
    """Matrices outside linear layers stay whole, with the reason.

    PyTorch's own attention has such matrices; the MLP is divided.
    """
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    split = find_split(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), 2, torch.randn(2, 5, 8))
    (block,) = split.blocks
    assert [part.row.path for part in block.parts] == ["linear2"]
    assert set(block.undivided) == {"self_attn.in_proj_weight", "self_attn.out_proj.weight"}


@pytest.mark.parametrize(("interleaved", "pieces"), [(True, 1), (False, 2)])
def test_a_fused_layer_is_divided_as_it_is_read(interleaved: bool, pieces: int) -> None:
    """A fused layer is divided in pieces if its halves are consecutive.

    Interleaved halves are divided as one piece: values decide, not shapes.
    """
    (block,) = find_split(in_rows(Pair(Gate(interleaved), fused=2)), 4, torch.randn(4, 8)).blocks
    assert block.parts[0].columns[0][0].cut == Cut(0, pieces)


class Noise(nn.Module):
    """A module with random numbers other than dropout, one for each feature."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape to the same."""
        return x + torch.rand_like(x) if self.training else x


@pytest.mark.parametrize("name", NAMES)
def test_dropout_of_attention_is_divided_by_heads(name: str) -> None:
    """Each device draws the part of an attention mask for its heads.

    Dropout after the sum is equal on all devices.
    """
    model, args, kwargs = model_of(name, dropout=0.2)
    (block,) = find_split(model, 2, *args, **kwargs).blocks
    attention, mlp = block.parts
    (draws,) = attention.draws
    assert draws.dims[0] == 1
    assert set(draws.dims[1:]) <= {None}
    assert mlp.draws == ()


def test_dropout_between_linear_layers() -> None:
    """A dropout module between linear layers has masks divided by features."""
    (block,) = find_split(in_rows(Pair(nn.Dropout(0.3))), 2, torch.randn(4, 8)).blocks
    assert block.parts[0].draws == (DividedDraws("between", (1,)),)


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        (nn.Sequential(nn.Dropout(0.3), Gate(False)), "differs"),
        (nn.Sequential(Noise(), Gate(False)), "random numbers other than those of dropout"),
    ],
)
def test_masks_that_cannot_be_divided(between: nn.Module, reason: str) -> None:
    """A mask over two fused pieces, and other random numbers, are refused."""
    with pytest.raises(RefusedError, match=f"mask cannot be divided: .*{reason}") as error:
        find_split(in_rows(Pair(between, fused=2)), 2, torch.randn(4, 8))
    assert "down" in error.value.place


def test_blocks_that_differ_are_proved_each() -> None:
    """Each kind of block has its own entry; equal blocks share one."""
    split = find_split(in_rows(Pair(nn.GELU()), Pair(Gate(False), 2), Pair(nn.GELU())), 2, torch.randn(4, 8))
    assert [block.paths for block in split.blocks] == [("0", "2"), ("1",)]


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)), torch.randn(2, 8)),
        (ResNet(18, 0.1), torch.randn(2, 3, 32, 32)),
    ],
)
def test_a_model_without_blocks_is_refused(model: nn.Module, given: torch.Tensor) -> None:
    """A model without numbered modules of two linear layers is refused."""
    with pytest.raises(RefusedError, match="no repeated module"):
        find_split(model, 2, given)


def test_a_model_without_numbers_is_refused() -> None:
    """A model on `meta` is refused, because nothing can be run."""
    with torch.device("meta"):
        model = in_rows(Pair(nn.GELU()))
    with pytest.raises(RefusedError, match="on meta"):
        find_split(model, 2, torch.randn(4, 8, device="meta"))


def test_a_divided_weight_that_is_shared_is_refused() -> None:
    """A divided weight that is shared by two layers is refused.

    Embedding and output layer may share a weight: they are divided in the same way.
    """
    model = in_rows(Pair(nn.GELU()), Pair(nn.GELU()))
    model[1].up.weight = model[0].up.weight  # type: ignore[index, union-attr]
    with pytest.raises(RefusedError, match=r"parameter 0\.up\.weight: found a weight that is tied to 1\.up\.weight"):
        find_split(model, 2, torch.randn(4, 8))


class Reading(nn.Module):
    """Attention to another sequence; keys and values come from one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 4
        self.q, self.kv, self.out = nn.Linear(8, 8), nn.Linear(6, 16), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """(samples, seq, 8) and (samples, source, 6) to the first shape."""
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(memory).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Translator(nn.Module):
    """Blocks that all read one memory, and sum its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.blocks = nn.Linear(6, 6), nn.ModuleList(Reading() for _ in range(2))

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """(samples, seq, 8) and (samples, source, 6) to the first shape."""
        memory = self.memory(memory)
        for block in self.blocks:
            x = block(x, memory)
        return x


def test_columns_that_read_different_tensors() -> None:
    """Columns that read different tensors need one all-reduce for each tensor.

    Each column has its own number of pieces.
    """
    split = find_split(Translator(), 4, torch.randn(2, 3, 8), torch.randn(2, 5, 6))
    (part,) = split.blocks[0].parts
    assert [[(linear.path, linear.cut) for linear in group] for group in part.columns] == [
        [("q", Cut(0))],
        [("kv", Cut(0, 2))],
    ]
    assert part.attributes == (DividedAttribute("", "heads", 4),)
    assert split.collectives.all_reduces == CollectiveCounts(2, 4)


def test_one_device_needs_no_split() -> None:
    """A width of 1 is refused, in a file too."""
    model, args, _ = model_of("gpt")
    with pytest.raises(RefusedError, match="width"):
        find_split(model, 1, *args)
    data = find_split(model, 2, *args).as_data()
    with pytest.raises(InputError, match="width"):
        TensorSplit.read({**data, "width": 1})


@pytest.mark.parametrize("cut", [Cut(0), Cut(1), Cut(0, 3), Cut(1, 2)])
def test_parts_make_the_whole(cut: Cut) -> None:
    """Parts make the whole: every element belongs to one device, in order."""
    whole = torch.arange(12.0 * 8).view(12, 8)
    parts = [part_of(whole, cut, 2, rank) for rank in range(2)]
    assert torch.equal(whole_of(parts, cut), whole)
    if cut.pieces == 3:
        assert parts[1][:, 0].tolist() == [16.0, 24.0, 48.0, 56.0, 80.0, 88.0]
