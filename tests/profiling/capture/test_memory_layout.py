"""Order of a tensor's elements in memory, compared with torch itself."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from hocket.profiling.capture.memory_layout import inverse, is_dense, memory_order


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Contiguous tensors, their transpositions, and slices of these."""
    shape = draw(st.lists(st.integers(1, 4), max_size=4))
    found = torch.zeros(shape).permute(draw(st.permutations(range(len(shape)))))
    if shape and draw(st.booleans()):
        dim = draw(st.integers(0, len(shape) - 1))
        found = found.narrow(dim, 0, draw(st.integers(1, found.shape[dim])))
    return found


@given(tensors())
def test_a_dense_tensor_is_contiguous_in_its_order(tensor: torch.Tensor) -> None:
    """Exactly the dense tensors are contiguous in their order, as torch finds."""
    order = memory_order(tuple(tensor.shape), tensor.stride())
    assert is_dense(tuple(tensor.shape), tensor.stride()) == tensor.permute(order).is_contiguous()
    assert tensor.permute(order).permute(inverse(order)).stride() == tensor.stride()


def test_repeated_elements_and_unknown_strides_have_the_usual_order() -> None:
    """An expanded tensor is not dense; without strides the usual order is used."""
    wide = torch.zeros(1, 3).expand(2, 3)
    assert memory_order((2, 3), wide.stride()) == (0, 1)
    assert not is_dense((2, 3), wide.stride())
    assert (memory_order((2, 3), ()), is_dense((2, 3), ())) == ((0, 1), True)
