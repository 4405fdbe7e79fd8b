"""Recorder of every operation on tensors while a model runs.

Rules of this file: the model runs unchanged, on real numbers or (fake_tensors.py) on sizes alone. A module without
children is one operation, and so is a module of torch.nn that does its work itself. Every other operation on tensors
is recorded separately.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hocket.errors import CaptureError
from hocket.profiling.analytic.aten_costs import flops_of_call
from hocket.profiling.analytic.fake_tensors import changed_unsaid, draws, is_fake
from hocket.profiling.capture.recorded_graph import (
    Call,
    Context,
    RecordedOperation,
    RecordedValue,
    Ref,
    flatten,
    function_name,
)
from hocket.profiling.job.derived_model.training_step import user_module
from hocket.profiling.tensor_parallel.sharded_logits import LogitsPart

# Modules of torch.nn that only call their children. Other modules of torch.nn are recorded whole.
_CONTAINERS = (
    nn.Sequential,
    nn.ModuleList,
    nn.ModuleDict,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)
# Functions that turn a tensor's numbers into Python's, so that the program may depend on them.
_READERS = frozenset(
    [
        "item",
        "tolist",
        "numpy",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "__complex__",
        "__array__",
        "__contains__",
        "equal",
        "allclose",
        "is_nonzero",
        "__repr__",
        "__format__",
    ]
)
# Functions that use only shape, type and device of their tensor.
_FACTORIES = {
    "zeros_like": torch.zeros,
    "ones_like": torch.ones,
    "new_zeros": torch.zeros,
    "new_ones": torch.ones,
}


# Functions that return their argument itself if there is nothing to do, which may depend on the microbatch size. They
# are always recorded, with a separate result.
_MAYBE_SAME = frozenset(
    [
        "contiguous",
        "to",
        "type",
        "type_as",
        "float",
        "double",
        "half",
        "bfloat16",
        "long",
        "int",
        "bool",
        "flatten",
        "reshape",
    ]
)
# Questions and changes of `requires_grad`.
_GRADIENT_FLAGS = ("requires_grad_", "requires_grad.__get__", "requires_grad.__set__")


def is_leaf(module: nn.Module) -> bool:
    """True if a module is recorded as one node."""
    if next(module.children(), None) is None:
        return True
    return type(module).__module__.startswith("torch.nn.modules") and not isinstance(module, _CONTAINERS)


class _Cost(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that counts floating point operations by PyTorch's formulas.

    It also finds random operations and undeclared in-place changes, which a run on fake tensors would not show.

    Attributes:
        random: True if an operation drew random numbers.
        changed: tensors that an operation changed in place although its schema does not say so.
    """

    flops: float = 0.0
    random: bool = False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.changed: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "prim":  # a question about a tensor
            return func(*args, **(kwargs or {}))
        self.random = self.random or draws(func, args, kwargs or {})
        self.changed += changed_unsaid(func, args, kwargs or {})
        out = func(*args, **(kwargs or {}))
        self.flops += flops_of_call(func, args, kwargs or {}, out)
        return out


class Recorder(TorchFunctionMode):
    """Mode that records the operations inside it; use `record`."""

    def __init__(self, modules: dict[str, nn.Module], opaque: frozenset[str], device: torch.device) -> None:
        super().__init__()
        self.paths = {id(module): path for path, module in modules.items()}
        self.opaque, self.device = opaque, device
        self.values: list[RecordedValue] = []
        self.nodes: list[RecordedOperation] = []
        self.calls = [Call("", "", -1, 0)]
        self.stack = [0]
        self.number: dict[int, int] = {}
        self.sharing: dict[int, list[Tensor]] = {}
        self.kept: list[Any] = []
        self.changed_unsaid: set[int] = set()
        self.registered: set[int] = set()
        self.busy = 0

    # -- values

    def add(self, tensor: Tensor, kind: str, name: str, fixed: bool, node: int = -1) -> int:
        """Add a value for a new tensor, or for one that has changed; return its index.

        Arguments:
            kind: "batch", "parameter", "buffer", "node" (computed by an operation) or "constant".
            name: key of the batch's tensor, or global name of the parameter or buffer; "" for other kinds.
            fixed: True if the tensor depends neither on the batch nor on parameters nor on random numbers.
            node: index of the operation that computed the tensor; -1 for none.
        """
        storage = storage_of(tensor)
        keep = tensor.detach() if kind == "constant" else None
        value = RecordedValue(
            kind, name, node, fixed, tuple(tensor.shape), _stride_of(tensor), tensor.dtype, tensor.requires_grad,
            storage, keep,
        )  # fmt: skip
        self.values.append(value)
        if id(tensor) not in self.number:
            self.kept.append(tensor)
            self.sharing.setdefault(storage, []).append(tensor)
        if kind in ("parameter", "buffer"):
            self.registered.add(id(tensor))
        self.number[id(tensor)] = len(self.values) - 1
        return len(self.values) - 1

    def _lookup(self, tensor: Tensor, reads: list[int]) -> Ref:
        if self._is_frozen(tensor):
            return self._detached(tensor, reads)
        self._known_maker(tensor)
        number = self.number.get(id(tensor))
        if number is None:
            number = self.add(tensor, "constant", "", fixed=True)
        reads.append(number)
        return Ref(number)

    def _known_maker(self, tensor: Tensor) -> None:
        number = self.number.get(id(tensor))
        # A custom autograd function marks results of operations that it ran without gradients as requiring one.
        if tensor.requires_grad != (number is not None and self.values[number].requires_grad):
            self.refuse(
                "a tensor whose gradient no recorded operation explains",
                "operations of torch, and parameters that are registered in a module",
                "Put custom autograd functions into modules other than the outermost.",
            )

    def _template(self, thing: Any, reads: list[int]) -> Any:
        if isinstance(thing, Tensor):
            return self._lookup(thing, reads)
        if isinstance(thing, tuple):
            items = [self._template(item, reads) for item in thing]
            return type(thing)(*items) if hasattr(thing, "_fields") else tuple(items)
        if isinstance(thing, list):
            return [self._template(item, reads) for item in thing]
        if isinstance(thing, dict):
            return {key: self._template(item, reads) for key, item in thing.items()}
        if isinstance(thing, slice):
            return slice(*(self._template(part, reads) for part in (thing.start, thing.stop, thing.step)))
        if dataclasses.is_dataclass(thing) and not isinstance(thing, type) and any(flatten(thing)):
            self.refuse(f"a {type(thing).__name__} of tensors as an argument", "tensors, tuples, lists, dictionaries")
        if hasattr(thing, "__dict__") and not callable(thing) and any(flatten(vars(thing))):
            self.refuse(f"a {type(thing).__name__} that holds tensors as an argument", "tensors, tuples, dictionaries")
        return thing

    def refuse(self, found: str, expected: str, next_step: str = "") -> None:
        """Raise a CaptureError that names the innermost module."""
        path = self.calls[self.stack[-1]].path
        error = CaptureError(f"module {path or '(root)'}", found, expected, next_step)
        error.module_path = path  # type: ignore[attr-defined]
        raise error

    # -- nodes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.busy:
            return func(*args, **kwargs)
        if any(issubclass(kind, LogitsPart) for kind in types):
            with self:  # operations on the part are recorded
                return LogitsPart.__torch_function__(func, types, args, kwargs)
        name = function_name(func)
        if name in _GRADIENT_FLAGS and id(args[0]) in self.registered:
            self.busy += 1
            result = func(*args, **kwargs)
            self.busy -= 1
            return result
        if name == "__iter__" and args and isinstance(args[0], Tensor):
            return iter(self._run(Tensor.unbind, torch.Tensor.unbind, (args[0], 0), {}))
        return self._run(func, func, args, kwargs)

    def _run(self, target: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.busy += 1
        try:
            return self._record(target, function, tuple(args), dict(kwargs))
        finally:
            self.busy -= 1

    def _record(self, target: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        reads: list[int] = []
        slim_args, slim_kwargs = self._template(args, reads), self._template(kwargs, reads)
        name = target if isinstance(target, str) else function_name(target)
        fixed = all(self.values[v].fixed for v in reads)
        if name in _READERS and not isinstance(target, str) and not fixed:
            self.refuse(
                f"{name}() of a tensor that depends on the batch or on parameters (data-dependent control flow)",
                "a forward that does the same for every batch",
                "Compute it with tensors (torch.where), or keep it inside a module without children.",
            )
        inputs = [tensor for _, tensor in flatten((args, kwargs))]
        context = _context(self.device.type)
        before = [tensor._version for tensor in inputs]
        rng = _rng_state(self.device)
        with _Cost() as cost:
            result = function(*args, **kwargs)
        # Fake tensors compute nothing, so the generator does not show random operations.
        is_random = cost.random if is_fake() else not _all_equal(rng, _rng_state(self.device))
        self.changed_unsaid.update(storage_of(tensor) for tensor in cost.changed)
        changed = {id(t): t for t, version in zip(inputs, before, strict=True) if t._version != version}
        # A module with buffers is recorded whatever it returns, because it may write to them.
        keeps = isinstance(target, str) and any(True for _ in function.buffers())  # type: ignore[attr-defined]
        if (keeps or name in _MAYBE_SAME) and any(result is tensor for tensor in inputs):
            result = result.view_as(result)
        found = list(flatten(result))
        if name.endswith(".__set__") or name == "set_":
            self.refuse(f"{name} on a tensor", "operations that make a new tensor or change one in place")
        if name in _FACTORIES and not changed and len(found) == 1 and not result.requires_grad:
            target, reads, fixed = _FACTORIES[name], [], True
            slim_args = (tuple(result.shape),)
            slim_kwargs = {"dtype": result.dtype, "device": result.device}
        if not found and not changed and not keeps:
            return result
        uses_weights = isinstance(target, str) and any(True for _ in function.parameters())  # type: ignore[attr-defined]
        index = len(self.nodes)
        fixed = fixed and not is_random and not uses_weights and not isinstance(target, str)
        node = RecordedOperation(target, slim_args, slim_kwargs, [], [], self.stack[-1], tuple(dict.fromkeys(reads)))
        node.random, node.flops, node.context = is_random, cost.flops, context
        storages = set()
        for tensor in changed.values():
            old = self.values[self.number[id(tensor)]]
            if old.kind == "parameter":
                self.refuse(f"parameter {old.name} modified in place", "parameters that only the optimizer changes")
            storages.add(old.storage)
        for storage in storages:
            for tensor in self.sharing.get(storage, []):
                earlier = self.number[id(tensor)]
                kind = self.values[earlier]
                after = self.add(tensor, "node", "", fixed and kind.kind != "buffer", index)
                node.aliases.append((earlier, after))
        node.mutates = frozenset(storages)
        for path, tensor in found:
            if id(tensor) not in self.number:
                node.outputs.append((path, self.add(tensor, "node", "", fixed, index)))
        if isinstance(target, str) and not node.flops:
            node.flops = _guess_flops(function, inputs)
        node.moved_bytes = sum(t.numel() * t.element_size() for t in inputs + [t for _, t in found])
        if node.outputs or node.aliases or keeps:
            self.nodes.append(node)
        return result

    def call_module(self, plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Replacement of nn.Module.__call__ while recording."""
        path = self.paths.get(id(module))
        if self.busy:
            return plain(module, *args, **kwargs)
        if path is None:  # a module made on the fly, often a loss: its operations are recorded, its parameters refused
            return plain(module, *args, **kwargs)
        call = Call(
            path,
            type(user_module(module)).__name__,
            self.stack[-1],
            len(self.nodes),
            0,
            isinstance(module, nn.Sequential),
        )
        self.calls.append(call)
        self.stack.append(len(self.calls) - 1)
        whole = is_leaf(module) or path in self.opaque
        if whole and any(isinstance(x, LogitsPart) for _, x in flatten((args, kwargs))):
            call.as_one, whole = True, False  # so that its operations on the part are recorded
        whole = whole and self._has_own(module)
        result = self._run(path, _Bound(plain, module), args, kwargs) if whole else plain(module, *args, **kwargs)
        self.busy += 1
        for _, tensor in flatten(result):
            self._known_maker(tensor)
        self.busy -= 1
        self.stack.pop()
        call.end = len(self.nodes)
        return result

    def _has_own(self, module: nn.Module) -> bool:
        """True if a module has the tensors that it had at the start, with the same `requires_grad`.

        Inside `torch.func.functional_call` it has others. Its operations are then recorded, with the tensors that they
        use.
        """
        own = (*module.parameters(), *module.buffers())
        return all(id(t) in self.registered and not self._is_frozen(t) for t in own)

    def _is_frozen(self, tensor: Tensor) -> bool:
        """True for a parameter that the forward has set to `requires_grad_(False)`."""
        number = self.number.get(id(tensor)) if id(tensor) in self.registered else None
        return number is not None and self.values[number].requires_grad and not tensor.requires_grad

    def _detached(self, parameter: Tensor, reads: list[int]) -> Ref:
        """Record a frozen parameter as the detached one."""
        parameter.requires_grad = True  # as it was recorded
        result = self._record(Tensor.detach, Tensor.detach, (parameter,), {})
        parameter.requires_grad = False
        return self._lookup(result, reads)


class _Bound:
    """A module that is called through its original `__call__`, without recording."""

    def __init__(self, plain: Callable[..., Any], module: nn.Module) -> None:
        self.plain, self.module = plain, module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.plain(self.module, *args, **kwargs)

    def parameters(self) -> Iterator[Tensor]:
        """Parameters of the module that is called."""
        return self.module.parameters()

    def buffers(self) -> Iterator[Tensor]:
        """Buffers of the module that is called."""
        return self.module.buffers()


def _context(device: str) -> Context | None:
    gradients, autocast = torch.is_grad_enabled(), torch.is_autocast_enabled(device)
    if gradients and not autocast:
        return None
    return Context(gradients, autocast, device, torch.get_autocast_dtype(device))


def _guess_flops(bound: Any, inputs: list[Tensor]) -> float:
    """Estimate the operations of a recurrent module, which has no formula.

    One multiplication and one addition for each weight and position.
    """
    if not isinstance(bound, _Bound) or not isinstance(bound.module, nn.RNNBase) or not inputs:
        return 0.0
    weights = sum(p.numel() for p in bound.module.parameters() if p.dim() > 1)
    return 2.0 * weights * inputs[0].numel() / inputs[0].shape[-1]


def storage_of(tensor: Tensor) -> int:
    """Identity of the memory that a tensor is a view of."""
    try:
        storage = tensor.untyped_storage()
        return storage._cdata if storage.device.type == "meta" else storage.data_ptr() or -id(tensor)
    except (NotImplementedError, RuntimeError):  # sparse tensors and the like have none
        return -id(tensor)


def _stride_of(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.stride()) if tensor.layout is torch.strided else ()


def _all_equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def _rng_state(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states
