"""Vocabulary parallelism of unedited models, found and proved.

Otherwise an embedding or output layer stays whole, with the reason.
"""

import copy
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hocket.errors import InputError
from hocket.profiling.tensor_parallel.discovery.blocks import find_split
from hocket.profiling.tensor_parallel.discovery.sequence import with_slices
from hocket.profiling.tensor_parallel.discovery.vocabulary import _unfound, with_vocabulary
from hocket.profiling.tensor_parallel.group import TensorParallelGroup
from hocket.profiling.tensor_parallel.sharded_modules import cuts, divide, part_of, whole_of
from hocket.profiling.tensor_parallel.split import CollectiveCounts, Cut, DividedEmbedding, DividedLinear, TensorSplit
from hocket.profiling.tensor_parallel.threaded_group import ThreadedGroup
from tests.profiling.helpers.transformers_of import NAMES, VOCAB, logits_of, model_of
from tests.profiling.tensor_parallel.discovery.test_blocks import Pair

ENDS = {
    "gpt": ("tok", "head"),
    "gpt2": ("transformer.wte", "lm_head"),
    "bert": ("bert.embeddings.word_embeddings", "cls.predictions.decoder"),
    "llama": ("model.embed_tokens", "lm_head"),
}
# Possible names of one parameter.
TIED = {
    "gpt": {"tok.weight", "head.weight"},
    "gpt2": {"transformer.wte.weight", "lm_head.weight"},
    "bert": {"bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"},
    "llama": {"model.embed_tokens.weight"},
}


def loss_of(model: nn.Module, args: Any, kwargs: Any) -> Tensor:
    """Loss of the next word, without some words, in the model's own type."""
    logits = logits_of(model(*args, **kwargs))[..., :-1, :].flatten(0, 1)
    target = 3 * torch.arange(len(logits)) % VOCAB
    target[2] = -100
    return functional.cross_entropy(logits, target, label_smoothing=0.1)


def labelled(model: nn.Module, kwargs: Any) -> Tensor:
    """The loss that the model computes itself."""
    labels = kwargs["input_ids"].clone()
    labels[0, 3] = -100
    found: Tensor = model(**kwargs, labels=labels).loss
    return found


def gradients(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return a loss and its gradients."""
    found = loss(model)
    names = dict(model.named_parameters())
    made = torch.autograd.grad(found, list(names.values()), allow_unused=True)
    return found.detach(), {n: g for n, g in zip(names, made, strict=True) if g is not None}


def assert_as_one(model: nn.Module, split: TensorSplit, loss: Callable[[nn.Module], Tensor], tolerance: float) -> None:
    """Check losses and gradients of simulated devices against the whole model."""
    expected, whole = gradients(model, loss)
    divided = cuts(model, split)

    def one(rank: int, members: TensorParallelGroup) -> tuple[Tensor, dict[str, Tensor]]:
        part = copy.deepcopy(model)
        divide(part, split, rank, members)
        assert cuts(part, split) == divided
        assert [name for name, _ in part.named_parameters()] == [name for name, _ in model.named_parameters()]
        return gradients(part, loss)

    for rank, (found, parts) in enumerate(ThreadedGroup(split.width).run(one)):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=0.0)
        assert parts.keys() == whole.keys()
        for name, gradient in parts.items():
            own = part_of(whole[name], divided[name], split.width, rank) if name in divided else whole[name]
            torch.testing.assert_close(gradient, own, rtol=0.0, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("own_loss", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_vocabulary_of_a_transformer(name: str, own_loss: bool) -> None:
    """The vocabulary of a transformer is divided, also unevenly.

    The weight is tied or not, and the loss is the job's or the model's own. The model is unchanged.
    """
    model, args, kwargs = model_of(name)
    if own_loss and name == "gpt":
        pytest.skip("it makes no loss itself")

    def loss(model: nn.Module) -> Tensor:
        return labelled(model, kwargs) if own_loss else loss_of(model, args, kwargs)

    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    plain = find_split(model, 2, *args, **kwargs)
    split = with_vocabulary(model, plain, lambda: loss(model))
    embedding, output = ENDS[name.split()[0]]
    assert split.embedding == DividedEmbedding(embedding, Cut(0, words=VOCAB))
    assert split.output == DividedLinear(output, Cut(0, words=VOCAB))
    assert split.undivided == {}
    found = cuts(model, split)
    assert TIED[name.split()[0]] <= found.keys()
    assert ("bert" in name) == ("cls.predictions.bias" in found)
    assert split.collectives.all_reduces == plain.collectives.all_reduces + CollectiveCounts(1, 1)
    assert split.collectives.gathers == plain.collectives.gathers + CollectiveCounts(1, 0)
    assert TensorSplit.read(json.loads(json.dumps(split.as_data()))) == split
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    assert all(m.training and not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    # A loss that a Hugging Face model computes itself is in float32.
    assert_as_one(model, split, loss, 1e-6 if own_loss else 1e-12)


@pytest.mark.parametrize("name", ["gpt", "bert sdpa"])
def test_words_and_slices_of_the_sequence(name: str) -> None:
    """Vocabulary and sequence are divided over four devices; the last has fewer words."""
    model, args, kwargs = model_of(name)
    split = with_slices(model, find_split(model, 4, *args, **kwargs), *args, **kwargs)
    split = with_vocabulary(model, split, lambda: loss_of(model, args, kwargs))
    assert split.embedding is not None
    assert split.output is not None
    assert split.runs
    assert_as_one(model, split, lambda model: loss_of(model, args, kwargs), 1e-12)


class Speaker(nn.Module):
    """Blocks between an embedding and an output layer."""

    def __init__(self, words: int = 15, tied: bool = False, **options: Any) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(words, 8, **options), nn.Embedding(2, 8)
        self.blocks = nn.ModuleList([Pair(nn.GELU())])
        self.out = nn.Linear(8, words)
        if tied:
            self.out.weight = self.words.weight

    def forward(self, ids: Tensor, kinds: Tensor) -> Tensor:
        """(samples, seq) twice to (samples, seq, words)."""
        found: Tensor = self.out(self.blocks[0](self.words(ids) + self.kinds(kinds)))
        return found


IDS = torch.tensor([[0, 3, 14, 3], [7, 8, 3, 9]])


def next_word(logits: Tensor) -> Tensor:
    """Cross-entropy of the next word."""
    return functional.cross_entropy(logits.flatten(0, 1), IDS.flatten())


def found_for(
    model: nn.Module, width: int = 2, loss: Callable[[Tensor], Tensor] = next_word, ids: Tensor = IDS
) -> TensorSplit:
    """The split with the vocabulary."""
    args = (ids, ids % 2)
    return with_vocabulary(model, find_split(model, width, *args), lambda: loss(model(*args)))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("padding", [None, 0, 3, 14])
def test_padding_of_an_embedding(tied: bool, padding: int | None) -> None:
    """The padding word of an embedding may be on any device."""
    torch.manual_seed(0)
    model = Speaker(tied=tied, padding_idx=padding).double()
    split = found_for(model)
    assert (split.embedding, split.output) == (
        DividedEmbedding("words", Cut(0, words=15)),
        DividedLinear("out", Cut(0, words=15)),
    )
    assert_as_one(model, split, lambda model: next_word(model(IDS, IDS % 2)), 1e-12)


class Reusing(Speaker):
    """A model that reads its embedding's weight elsewhere too."""

    def forward(self, ids: Tensor, kinds: Tensor) -> Tensor:
        """As above."""
        found: Tensor = self.out(self.blocks[0](self.words(ids) + self.words.weight.mean(0)))
        return found


class Functional(Speaker):
    """A model with an output layer that is a function, not a module."""

    def forward(self, ids: Tensor, kinds: Tensor) -> Tensor:
        """As above."""
        return self.blocks[0](self.words(ids) + self.kinds(kinds)) @ self.words.weight.t()  # type: ignore[no-any-return]


ELSEWHERE = "its weights are used elsewhere as well"


@pytest.mark.parametrize(
    ("model", "loss", "expected"),
    [
        (Speaker(), lambda x: x.square().mean(), {"out": "all of its logits are needed for square"}),
        (
            Speaker(tied=True),
            lambda x: -(x.log_softmax(-1)[..., 0]).mean(),
            {"out": "all of its logits are needed for log_softmax", "words": "its weight is that of out, which is whole"},
        ),
        (
            Speaker(),
            lambda x: next_word(x) + 1e-4 * x.logsumexp(-1).square().mean(),
            {"out": "all of its logits are needed for logsumexp"},
        ),
        (Speaker(), lambda x: x[..., :3].detach().sum() * 0 + next_word(x), {"out": "all of its logits are needed for __getitem__"}),
        (Reusing(), next_word, {"words": ELSEWHERE}),
        (Functional(), next_word, {"words": ELSEWHERE}),
        (
            Speaker(tied=True, max_norm=0.5),
            next_word,
            {"words": "it is an embedding with max_norm", "out": "its weight is that of words, which is whole"},
        ),
        (Speaker(scale_grad_by_freq=True), next_word, {"words": "it is an embedding with scale_grad_by_freq"}),
    ],
)  # fmt: skip
def test_what_stays_whole(model: nn.Module, loss: Callable[[Tensor], Tensor], expected: dict[str, str]) -> None:
    """An end that stays whole has a reason, and so has a tied one.

    The other end is divided alone.
    """
    split = found_for(model.double(), loss=loss)
    assert split.undivided == expected
    ends = {end.path for end in (split.embedding, split.output) if end is not None}
    assert ends == {"words", "out"} - expected.keys() - ({"out"} if isinstance(model, Functional) else set())
    assert_as_one(model, split, lambda model: loss(model(IDS, IDS % 2)), 1e-12)


def test_too_few_words() -> None:
    """Every device needs a word: 9 words on four devices would give 3, 3, 3, 0."""
    torch.manual_seed(0)
    ids = IDS % 9
    model = Speaker(9).double()
    split = with_vocabulary(
        model,
        find_split(model, 4, ids, ids % 2),
        lambda: functional.cross_entropy(model(ids, ids % 2).flatten(0, 1), ids.flatten()),
    )
    assert split.undivided == dict.fromkeys(("out", "words"), "9 words are too few for 4 devices")


def test_less_words_than_features_are_no_vocabulary() -> None:
    """Fewer words than features are no vocabulary, and no reason is given."""
    ids = IDS % 5
    model = Speaker(5).double()
    split = with_vocabulary(
        model,
        find_split(model, 2, ids, ids % 2),
        lambda: functional.cross_entropy(model(ids, ids % 2).flatten(0, 1), ids.flatten()),
    )
    assert (split.embedding, split.output, split.undivided) == (None, None, {})


def test_a_divided_model_is_not_divided_again() -> None:
    """A divided model is not divided again, nor a vocabulary of another size."""
    model = Speaker().double()
    split = found_for(model)
    with pytest.raises(InputError, match="16 entries; expected 15"):
        part_of(torch.zeros(16, 8), Cut(0, words=15), 2, 0)
    (members,) = ThreadedGroup(1).run(lambda _, members: members)
    one = TensorSplit(2, (), embedding=split.embedding, output=split.output)
    divide(model, one, 0, members)
    with pytest.raises(InputError, match="already divided"):
        divide(model, one, 0, members)


@pytest.mark.parametrize(("words", "width"), [(15, 2), (15, 4), (16, 4), (9, 4)])
def test_parts_of_words_make_the_whole(words: int, width: int) -> None:
    """Parts of a vocabulary make the whole, as torch cuts it.

    Parts may be padded to one size, as they are gathered.
    """
    whole = torch.arange(2.0 * words).view(words, 2)
    cut = Cut(0, words=words)
    parts = [part_of(whole, cut, width, rank) for rank in range(width)]
    assert [len(part) for part in parts if len(part)] == [len(part) for part in whole.chunk(width)]
    assert torch.equal(whole_of(parts, cut), whole)
    filled = [torch.cat([part, torch.full((-(-words // width) - len(part), 2), -1.0)]) for part in parts]
    assert torch.equal(whole_of(filled, cut), whole)


@pytest.mark.slow
def test_devices_that_run_side_by_side_draw_the_same() -> None:
    """Simulated devices draw the same numbers in any order of threads.

    Otherwise a divisible embedding would not always be found.
    """
    embedding = nn.Embedding(64, 8, dtype=torch.float64)
    ids, cut = torch.arange(64), Cut(0, words=64)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert {_unfound(embedding, cut, ids, 4) for _ in range(300)} == {""}
    finally:
        sys.setswitchinterval(interval_s)
