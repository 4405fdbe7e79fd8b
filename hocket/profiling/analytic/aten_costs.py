"""Costs of torch's operations, from the sizes of their tensors.

Rules of this file: an operation without an entry is a pass over all tensors that it reads and writes. An operation
that returns a view, or memory without content, costs nothing. Products are counted as torch's FlopCounterMode counts
them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from hocket.profiling.analytic.operators import MemoryPass, Operator, Product

# Operations that return uninitialized memory.
_NOTHING = frozenset(["empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"])
# Operations that overwrite a tensor without reading it.
_WRITERS = frozenset(["copy_", "fill_", "zero_", "bernoulli_", "normal_", "uniform_", "random_", "exponential_"])
# Operations that read as much of their first tensor as they write.
_GATHERERS = frozenset(["embedding", "gather", "index_select", "index", "take", "_unsafe_index"])

_aten = torch.ops.aten
# Operations without a formula in torch, with the formulas of similar operations.
_FORMULAS: dict[Any, Any] = {
    getattr(_aten, f"_scaled_dot_product_flash_attention_for_cpu{way}"): flop_registry[
        getattr(_aten, f"_scaled_dot_product_flash_attention{way}")
    ]
    for way in ("", "_backward")
}


def flops_of_call(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    """Return the floating point operations of a call by torch's own formulas.

    0 for an operation without a formula.
    """
    formula = flop_registry.get(func._overloadpacket) or _FORMULAS.get(func._overloadpacket)
    return float(formula(*args, **kwargs, out_val=out)) if formula is not None else 0.0


class OperatorLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that records torch operations as operators (`Product`, `MemoryPass`).

    Attributes:
        found: operators in execution order.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Operator] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace == "prim":  # a question about a tensor
            return out
        self.found += operators_of_call(func, args, kwargs or {}, out)
        return out

    def taken(self) -> tuple[Operator, ...]:
        """Return the operators found since the last call of this method."""
        found, self.found = tuple(self.found), []
        return found


def operators_of_call(func: Any, args: Any, kwargs: Any, out: Any) -> Sequence[Operator]:
    """Return the matrix products and memory passes of one call of an operation.

    Arguments:
        func: overload of the operation (`torch._ops.OpOverload`).
        out: its result.
    """
    name = func._schema.name.partition("::")[2]
    if name in _NOTHING or func.is_view:
        return ()
    given = {one.name: value for one, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    known = _KNOWN.get(name)
    if known is not None:
        return known(given, out)
    inputs, outputs = _tensors((args, kwargs)), _tensors(out)
    if not outputs and not func._schema.is_mutable:
        return ()
    if not func._schema.is_mutable and {*map(_storage, outputs)} <= {*map(_storage, inputs)}:
        return ()
    written = _bytes(outputs)
    if name in _GATHERERS:
        return (MemoryPass(2 * written + _bytes(inputs[1:])),)
    if name in _WRITERS:
        return (MemoryPass(written + _bytes(inputs[1:])),)
    return (MemoryPass(_bytes(inputs) + written),)


def _tensors(thing: Any) -> list[Tensor]:
    return [one for one in tree_leaves(thing) if isinstance(one, Tensor)]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _bytes(tensors: Iterable[Tensor]) -> float:
    """Return the bytes of some tensors; dimensions of stride 0 count as size 1."""
    each = (
        prod(n for n, step in zip(t.shape, t.stride(), strict=True) if step) * t.element_size()
        for t in tensors
        if t.layout is torch.strided
    )
    return float(sum(each))


def _dtype_of(tensor: Tensor, convolution: bool = False) -> str:
    """Return the compute dtype of a product.

    float32 counts as TF32 if torch may use it.
    """
    if tensor.dtype is torch.float32:
        short = torch.backends.cudnn.allow_tf32 if convolution else torch.backends.cuda.matmul.allow_tf32
        return "tfloat32" if short else "float32"
    return str(tensor.dtype).removeprefix("torch.")


def _product(a: Tensor, b: Tensor) -> Product:
    batch = a.shape[0] if a.dim() == 3 else 1
    rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    return Product(rows, inner, columns, batch, a.element_size(), dtype=_dtype_of(a))


def _of_two(first: str, second: str) -> Callable[[dict[str, Any], Any], Sequence[Operator]]:
    return lambda given, out: (_product(given[first], given[second]),)


def _convolved(
    rows: float, inner: float, columns: float, groups: int, touched: Iterable[Tensor], like: Tensor
) -> Product:
    dtype = _dtype_of(like, convolution=True)
    size = like.element_size()
    return Product(rows, inner, columns, groups, size, "convolution", 1.0, _bytes(touched), dtype)


def _convolution(given: dict[str, Any], out: Tensor) -> Sequence[Operator]:
    x, weight, groups = given["input"], given["weight"], given["groups"]
    # For a transposed convolution, the positions of the product are those of the input.
    side = x if given.get("transposed") else out
    positions = side.shape[0] * prod(side.shape[2:])
    touched = [x, weight, out]
    window = prod(weight.shape[2:])
    if given.get("transposed"):
        return (_convolved(positions, x.shape[1] / groups, weight.shape[1] * window, groups, touched, x),)
    return (_convolved(positions, weight.shape[1] * window, weight.shape[0] / groups, groups, touched, x),)


def _convolution_backward(given: dict[str, Any], out: Sequence[Tensor | None]) -> Sequence[Operator]:
    x, weight, grad, groups = given["input"], given["weight"], given["grad_output"], given["groups"]
    side = x if given["transposed"] else grad
    positions = side.shape[0] * prod(side.shape[2:])
    far, near = weight.shape[1] * prod(weight.shape[2:]), weight.shape[0] / groups
    to_input, to_weight, to_bias = given["output_mask"]
    found: list[Operator] = []
    if to_input:
        found.append(_convolved(positions, near, far, groups, [grad, weight, x], x))
    if to_weight:
        found.append(_convolved(far, positions, near, groups, [grad, weight, x], x))
    if to_bias:
        found.append(MemoryPass(_bytes([grad])))
    return found


def _attention(given: dict[str, Any], out: Any) -> Sequence[Operator]:
    q, k, v = (given[name] for name in ("query", "key", "value"))
    products = _attention_products(given, q, k, v)
    return _inside(products, _bytes([q, k, v, *_tensors(out)[:1]]))


def _attention_backward(given: dict[str, Any], out: Any) -> Sequence[Operator]:
    q, k, v = (given[name] for name in ("query", "key", "value"))
    score, value = _attention_products(given, q, k, v)
    grad = next(given[name] for name in ("grad_out", "grad_out_", "grad_output") if name in given)
    products = (score, *score.backward, *value.backward)
    return _inside(products, _bytes([q, k, v, grad, *_tensors(out)]))


def _attention_products(given: dict[str, Any], q: Tensor, k: Tensor, v: Tensor) -> tuple[Product, Product]:
    batch, element = q.shape[0] * q.shape[1], q.element_size()
    seen = 0.5 if given.get("is_causal") else 1.0
    score = Product(q.shape[2], q.shape[3], k.shape[2], batch, element, "attention", seen, dtype=_dtype_of(q))
    value = Product(q.shape[2], k.shape[2], v.shape[3], batch, element, "attention", seen, dtype=_dtype_of(q))
    return score, value


def _inside(products: Sequence[Product], touched_bytes: float) -> Sequence[Operator]:
    """Return the products of one kernel, each with an equal share of its bytes."""
    return tuple(replace(one, touched_bytes=touched_bytes / len(products)) for one in products)


def _recurrence(given: dict[str, Any], out: Any) -> Sequence[Operator]:
    """Operators of one layer of a recurrent network.

    The input product of all positions comes first, then one product for each position.
    """
    x, into, across = given["input"], given["weight0"], given["weight1"]
    return _steps(x, into.shape[0], across.shape[1])


def _recurrence_backward(given: dict[str, Any], out: Any) -> Sequence[Operator]:
    x, into, across = given["input"], given["weight1"], given["weight2"]
    return [each for one in _steps(x, into.shape[0], across.shape[1]) for each in one.backward]


def _steps(x: Tensor, gates: int, hidden: int) -> list[Product]:
    positions, samples, features = x.shape
    element, dtype = x.element_size(), _dtype_of(x)
    whole = Product(positions * samples, features, gates, 1, element, "recurrence", dtype=dtype)
    return [whole, *[Product(samples, hidden, gates, 1, element, "recurrence", dtype=dtype)] * positions]


def _picked(given: dict[str, Any], out: Any) -> Sequence[Operator]:
    return (MemoryPass(2 * _bytes([given["target"]])),)


def _spread(given: dict[str, Any], out: Any) -> Sequence[Operator]:
    """Operators that write a gradient which is zero except at selected entries."""
    grad = given["grad_output"]
    return (MemoryPass(_bytes(_tensors(out)) + 2 * _bytes([grad])),)


_KNOWN: dict[str, Callable[[dict[str, Any], Any], Sequence[Operator]]] = {
    "mm": _of_two("self", "mat2"),
    "bmm": _of_two("self", "mat2"),
    "addmm": _of_two("mat1", "mat2"),
    "baddbmm": _of_two("batch1", "batch2"),
    "convolution": _convolution,
    "_convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "mkldnn_rnn_layer": _recurrence,
    "mkldnn_rnn_layer_backward": _recurrence_backward,
    "nll_loss_forward": _picked,
    "nll_loss2d_forward": _picked,
    "nll_loss_backward": _spread,
    "nll_loss2d_backward": _spread,
    "embedding_dense_backward": _spread,
}
for _name in ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention"):
    _KNOWN[f"_scaled_dot_product_{_name}"] = _attention
    _KNOWN[f"_scaled_dot_product_{_name}_backward"] = _attention_backward
