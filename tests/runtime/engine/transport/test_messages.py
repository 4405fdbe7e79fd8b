"""A border of several tensors becomes one message and comes out as it went in."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InternalError
from hocket.runtime.engine.transport.messages import BorderLayout, Layouts
from hocket.runtime.stage.stage_layout import split
from tests.runtime.helpers.plans import Case, captured

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)


def filled(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Some numbers."""
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@given(st.lists(st.tuples(st.lists(st.integers(1, 5), max_size=3), st.sampled_from(DTYPES)), min_size=1, max_size=5))
def test_pack_and_unpack_are_inverses(specs):
    """For any shapes and types, scalars included, in one contiguous tensor."""
    layout = BorderLayout.of([(tuple(shape), (), dtype) for shape, dtype in specs])
    tensors = [filled(tuple(shape), dtype, k) for k, (shape, dtype) in enumerate(specs)]
    message = layout.pack(tensors)
    assert message.is_contiguous()
    there = layout.empty(torch.device("cpu"))
    assert there.shape == message.shape
    there.copy_(message)
    for found, tensor in zip(layout.unpack(there), tensors, strict=True):
        assert found.dtype == tensor.dtype
        assert torch.equal(found, tensor)


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 5), max_size=3), st.sampled_from(DTYPES)), min_size=1, max_size=3),
    st.integers(2, 8),
)
def test_slices_are_the_message(specs, slices):
    """Slices are successive parts of the message's memory.

    No slice is empty. A message with fewer bytes than slices is not cut.
    """
    layout = BorderLayout.of([(tuple(shape), (), dtype) for shape, dtype in specs], slices)
    tensors = [filled(tuple(shape), dtype, k) for k, (shape, dtype) in enumerate(specs)]
    message = layout.pack(tensors).reshape(-1).view(torch.uint8)
    assert message.nbytes == layout.message_bytes
    if layout.slices == 1:
        assert -(-message.nbytes // slices) * (slices - 1) >= message.nbytes
        return
    memory = torch.empty(layout.room_bytes, dtype=torch.uint8)
    assert 0 <= layout.room_bytes - message.nbytes < slices
    for member in range(slices):
        part = message[layout.slice_of(member)]
        assert 0 < part.nbytes <= memory[layout.room_of(member)].nbytes == layout.room_bytes // slices
        memory[layout.slice_of(member)] = part
    for found, tensor in zip(layout.unpack(layout.within(memory)), tensors, strict=True):
        assert torch.equal(found, tensor)


@pytest.mark.parametrize("stride", [(), (2, 1), (1, 3)])
def test_what_is_sent_is_contiguous(stride):
    """gloo sends no other: a tensor that does not lie as its layout says is copied."""
    tensor = torch.arange(6.0).view(2, 3).T if stride != (1, 3) else torch.arange(6.0).view(3, 2)
    layout = BorderLayout.of([((3, 2), stride, torch.float32)])
    message = layout.pack([tensor])
    assert message.is_contiguous()
    assert torch.equal(layout.unpack(message)[0], tensor)


@pytest.mark.parametrize("count", [1, 2])
def test_a_transposed_tensor_arrives_as_it_was(count):
    """A transposed tensor is sent without a copy and arrives with its strides.

    The receiving stage does not have to copy it into another layout.
    """
    tensor = torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1)
    layout = BorderLayout.of([(tuple(tensor.shape), tensor.stride(), tensor.dtype)] * count)
    message = layout.pack([tensor] * count)
    assert (message.data_ptr() == tensor.data_ptr()) is (count == 1)
    for found in layout.unpack(message):
        assert found.stride() == tensor.stride()
        assert torch.equal(found, tensor)


@pytest.mark.parametrize("wrong", [torch.ones(2, 3), torch.ones(3, 2, dtype=torch.float64)])
def test_another_shape_or_type_is_our_bug(wrong):
    """The other side would read it as something else."""
    with pytest.raises(InternalError):
        BorderLayout.of([((3, 2), (), torch.float32)]).pack([wrong])


def test_layouts_are_the_same_on_both_sides():
    """Layouts are the same on both sides.

    This includes ragged microbatches.
    """
    graph = captured("inception")
    plan = Case("flush", (1, 1, 1), batch_size=7).plan(graph)
    program = plan.compile(graph)
    sides = {
        d: Layouts(graph, plan.layout(graph), {p.number: p for p in split(graph, plan.layout(graph), d)})
        for d in program.devices
    }
    sends = [i for _, i in program.instructions() if i.peer >= 0 and i.reads]
    layouts = [(sides[i.device].of(i.reads[0]), sides[i.peer].of(i.reads[0])) for i in sends]
    assert layouts
    assert all(a == b for a, b in layouts)
    assert len({a.size_bytes for a, _ in layouts}) > 1
