"""Tensors side by side in flat memory, and its equal parts."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from hocket.runtime.update.flat_buffer import Flat

SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), min_size=1, max_size=6)
TYPES = (torch.float32, torch.float64, torch.bfloat16)


@given(SHAPES, st.integers(1, 5), st.data())
def test_parts_are_equal_and_pieces_are_all_that_there_is(
    shapes: list[tuple[int, ...]], parts: int, data: st.DataObject
) -> None:
    """Parts are equal, and the pieces of a tensor cover it.

    The pieces of all parts in order are the tensor. No piece is in two parts.
    """
    tensors = [torch.randn(shape).to(data.draw(st.sampled_from(TYPES))) for shape in shapes]
    flat = Flat.of(tensors, parts)
    memory = flat.memory(torch.device("cpu"))
    for view, tensor in zip(flat.views(memory), tensors, strict=True):
        assert view.shape == tensor.shape
        view.copy_(tensor)
    for each in memory:
        own = [flat.part(each, number) for number in range(parts)]
        assert len({part.numel() for part in own}) == 1
        assert torch.equal(torch.cat(own), each)
    found = [flat.pieces([flat.part(each, number) for each in memory], number) for number in range(parts)]
    for k, tensor in enumerate(tensors):
        assert torch.equal(torch.cat([pieces[k] for pieces in found]), tensor.flatten())
        for number in range(parts):
            first, last = flat.runs(number)[k]
            assert torch.equal(found[number][k], tensor.flatten()[first:last])


def test_one_part_is_no_longer_than_it_must_be() -> None:
    """Tensors begin on boundaries of 16 numbers; parts are multiples of that."""
    tensors = [torch.zeros(3, 5), torch.zeros(20)]
    assert Flat.of(tensors).sizes == (48,)
    assert Flat.of(tensors, 2).sizes == (64,)
    assert [p.at for p in Flat.of(tensors, 2).places] == [0, 16]
