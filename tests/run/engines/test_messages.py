"""A border of several tensors becomes one message and comes out as it went in."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InternalError
from hocket.run.engines._messages import Layout, Layouts
from hocket.run.split import split
from tests.run.plans import Case, captured

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)


def filled(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Some numbers."""
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@given(st.lists(st.tuples(st.lists(st.integers(1, 5), max_size=3), st.sampled_from(DTYPES)), min_size=1, max_size=5))
def test_pack_and_unpack_are_inverses(specs):
    """For any shapes and types, scalars included, in one contiguous tensor."""
    layout = Layout.of([(tuple(shape), dtype) for shape, dtype in specs])
    tensors = [filled(tuple(shape), dtype, k) for k, (shape, dtype) in enumerate(specs)]
    message = layout.pack(tensors)
    assert message.is_contiguous()
    there = layout.empty(torch.device("cpu"))
    assert there.shape == message.shape
    there.copy_(message)
    for found, tensor in zip(layout.unpack(there), tensors, strict=True):
        assert found.dtype == tensor.dtype
        assert torch.equal(found, tensor)


def test_a_transposed_tensor_is_made_contiguous():
    """gloo sends no other."""
    layout = Layout.of([((3, 2), torch.float32)])
    assert layout.pack([torch.ones(2, 3).T]).is_contiguous()


@pytest.mark.parametrize("wrong", [torch.ones(2, 3), torch.ones(3, 2, dtype=torch.float64)])
def test_another_shape_or_type_is_our_bug(wrong):
    """The other side would read it as something else."""
    with pytest.raises(InternalError):
        Layout.of([((3, 2), torch.float32)]).pack([wrong])


def test_layouts_are_the_same_on_both_sides():
    """Sender and receiver find the same layout for a value, ragged microbatches included."""
    graph = captured("inception")
    plan = Case("flush", (1, 1, 1), batch_size=7).plan(graph)
    program = plan.compile(graph)
    sides = {d: Layouts(graph, plan, {p.number: p for p in split(graph, plan, d)}) for d in program.devices}
    sends = [i for _, i in program.instructions() if i.peer >= 0 and i.reads]
    layouts = [(sides[i.device].of(i.reads[0]), sides[i.peer].of(i.reads[0])) for i in sends]
    assert layouts
    assert all(a == b for a, b in layouts)
    assert len({a.size_bytes for a, _ in layouts}) > 1
