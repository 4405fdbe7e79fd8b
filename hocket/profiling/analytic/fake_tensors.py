"""Fake tensors: sizes, strides and types without numbers or memory.

With fake tensors, a model of any size is captured without memory for its weights.

Rules of this file: inside `faked` every operation reads and returns fake tensors on the CPU. torch refuses an
operation that needs numbers, by name. Kernels are the ones that a CPU would choose, so that autograd keeps the same
tensors.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

# Operations that change running statistics although their schemas do not say so.
_UNSAID = ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_impl_index")
_DEVICE = torch.ops.prim.device.default


class _Sizes(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Fake tensor mode with the workspace of recurrent kernels.

    torch knows the size of this workspace only after computing. So one layer of zeros is computed for each size of
    such layers, and nothing else.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)  # type: ignore[no-untyped-call]
        self._workspaces: dict[Any, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE and not self.in_kernel_invocation:  # autograd asks for it repeatedly
            return args[0].fake_device  # type: ignore[index]
        out: Any = super().__torch_dispatch__(func, types, args, kwargs)
        if func is not torch.ops.aten.mkldnn_rnn_layer.default or out is NotImplemented:
            return out
        sizes = tuple((tuple(a.shape), a.dtype) if isinstance(a, Tensor) else str(a) for a in args)
        if sizes not in self._workspaces:
            with no_dispatch():
                given = [torch.zeros(a.shape, dtype=a.dtype) if isinstance(a, Tensor) else a for a in args]
                self._workspaces[sizes] = func(*given)[-1].numel()
        return (*out[:-1], out[-1].new_empty(self._workspaces[sizes]))


@contextmanager
def faked() -> Iterator[FakeTensorMode]:
    """Context in which tensors are fake: nothing is computed or allocated.

    Tensors from outside count as fake.
    """
    plain = nn.Module._apply
    # A module that is cast to another type gets new parameters from torch. Fake parameters refuse that.
    nn.Module._apply = _apply  # type: ignore[method-assign]
    try:
        with _Sizes() as mode:
            yield mode
    finally:
        nn.Module._apply = plain  # type: ignore[method-assign]


def _apply(module: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Replacement of `nn.Module._apply` that keeps tied weights tied.

    `to` and `half` call it.
    """
    for child in module.children() if recurse else ():
        child._apply(change)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for p in module._parameters.values():
            if p is not None:
                p.data = change(p)
        for key, b in module._buffers.items():
            if b is not None:
                module._buffers[key] = change(b)
    return module


def is_fake() -> bool:
    """True inside of the context `faked`."""
    return any(isinstance(mode, FakeTensorMode) for mode in _get_current_dispatch_mode_stack())


def fake_copy(module: Any, mode: FakeTensorMode) -> Any:
    """Return a copy of a module with fake parameters and buffers on the CPU.

    The module may be on `meta`.
    """
    with FakeCopyMode(mode):
        copied = copy.deepcopy(module)
    # Tied tensors stay tied. The old tensors are kept alive, because their ids could be used again.
    made: dict[int, tuple[Tensor, Tensor]] = {}
    for own in copied.modules() if isinstance(copied, nn.Module) else ():
        places: tuple[dict[str, Any], dict[str, Any]] = (own._parameters, own._buffers)
        for named in places:
            for key, tensor in named.items():
                if tensor is not None and tensor.device.type == "meta":
                    if id(tensor) not in made:
                        made[id(tensor)] = (tensor, _on_cpu(tensor, mode))
                    named[key] = made[id(tensor)][1]
    return copied


def _on_cpu(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    with mode:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made


def draws(func: Any, args: Any, kwargs: Any) -> bool:
    """True if an operation draws random numbers.

    Attention with a dropout probability of 0 does not.
    """
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    given = _by_name(func, args, kwargs)
    return not any(given.get(name) == 0 for name in ("dropout_p", "p"))


def changed_unsaid(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Return the tensors that an operation changes without telling in its schema."""
    if func._schema.name.removeprefix("aten::") not in _UNSAID:
        return []
    given = _by_name(func, args, kwargs)
    names = ("running_mean", "running_var")
    return [given[name] for name in names if isinstance(given.get(name), Tensor) and given.get("training", True)]


def _by_name(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    return {**{one.name: value for one, value in zip(func._schema.arguments, args, strict=False)}, **kwargs}
