"""Parts of dropout masks are parts of the masks that the whole model draws."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hocket.profiling.tensor_parallel.dropout import MaskPart


def attention_inputs(case: str) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    """Return query, key, value (samples, heads, seq, width) and other arguments."""
    draw = torch.Generator().manual_seed(0)
    groups = 2 if case == "grouped" else 1
    shapes = [(2, 4, 5, 3), (2, 4 // groups, 5, 3), (2, 4 // groups, 5, 3)]
    q, k, v = (torch.randn(s, generator=draw, dtype=torch.float64) for s in shapes)
    if case == "causal":
        return q, k, v, {"is_causal": True}
    if case == "grouped":
        return q, k, v, {"enable_gqa": True, "scale": 0.7}
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    mask[0, 0, 1] = False  # all keys are masked
    if case == "mask":
        return q, k, v, {"attn_mask": mask}
    return q, k, v, {"attn_mask": torch.randn(2, 1, 5, 5, generator=draw, dtype=torch.float64)}


@pytest.mark.parametrize("case", ["causal", "grouped", "mask", "bias"])
def test_attention_by_heads(case: str) -> None:
    """The heads of each of two devices equal the whole's.

    The random numbers that follow are equal too.
    """
    q, k, v, others = attention_inputs(case)
    torch.manual_seed(5)
    whole = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.4, **others)
    after = torch.get_rng_state()
    for rank in range(2):
        parts = [x.chunk(2, 1)[rank] for x in (q, k, v)]
        torch.manual_seed(5)
        with MaskPart((1,), 2, rank):
            found = functional.scaled_dot_product_attention(*parts, dropout_p=0.4, **others)
        torch.testing.assert_close(found, whole.chunk(2, 1)[rank], rtol=1e-12, atol=1e-12)
        assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("inplace", [False, True])
def test_dropout_by_any_dimension(inplace: bool) -> None:
    """Divided masks, whole masks and operations without masks follow one another."""
    x, y = torch.rand(4, 6), torch.rand(3)
    torch.manual_seed(5)
    whole = [functional.dropout(x, 0.5), functional.dropout(y, 0.5)]
    after = torch.get_rng_state()
    for rank in range(3):
        part = x.chunk(3, 1)[rank].clone()
        torch.manual_seed(5)
        with MaskPart((1, None), 3, rank):
            assert functional.dropout(y, 0.5, training=False) is y
            first, second = functional.dropout(part, 0.5, inplace=inplace), functional.dropout(y, 0.5)
        assert torch.equal(first, whole[0].chunk(3, 1)[rank])
        assert torch.equal(second, whole[1])
        assert (first is part) == inplace
        assert torch.equal(torch.get_rng_state(), after)


def test_what_is_kept_of_a_mask() -> None:
    """The backward keeps one byte for each element of the part.

    Neither the whole mask nor numbers of the tensor's type are kept.
    """
    x, kept = torch.rand(4, 6, requires_grad=True), list[Tensor]()

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), MaskPart((0,), 3, 1):
        functional.dropout(x, 0.5)
    assert [tensor.untyped_storage().nbytes() for tensor in kept] == [24]


def test_all_is_dropped() -> None:
    """With a probability of one, all elements are zero and none is NaN."""
    x = torch.rand(4, 6, requires_grad=True)
    with MaskPart((0,), 3, 1):
        found = functional.dropout(x, 1.0)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert not found.any()
    assert not gradient.any()
