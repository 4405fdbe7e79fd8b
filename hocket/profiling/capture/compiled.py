"""Compiled parts of a stage: operations as one flat function for torch.compile.

Rules of this file: a function has the tensors that it reads as arguments, and returns the tensors that are read after
it. Modules are called as they are, with their current parameters. Shapes are static: each microbatch size is compiled
separately. Random numbers are drawn as without compilation, so that masks are the same.
"""

import operator
import os
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from hocket.errors import CaptureError, RefusedError
from hocket.profiling.capture.recorded_graph import RecordedOperation
from hocket.profiling.capture.replay import filled
from hocket.profiling.capture.storage_tracker import StorageTracker
from hocket.profiling.measure.quiet_warnings import unwarned

# Dropout masks are drawn, and sums in short types are rounded, as without compilation.
_AS_WITHOUT = {"fallback_random": True, "emulate_precision_casts": True}
_LEAVE = "Leave compile out of the plan."
Call = tuple[Callable[..., Any], Any, Any]


def check_backend(place: str, backend: str, device: torch.device) -> None:
    """Require a compiler backend that works on this machine.

    Raises:
        RefusedError: inductor generates C++ for a CPU, and there is no C++ compiler.
    """
    if backend != "inductor" or device.type != "cpu":
        return
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    if not any(shutil.which(name) for name in names):
        found = f"{backend}, and no C++ compiler ({' or '.join(names)})"
        raise RefusedError(place, found, "a C++ compiler on every machine", "Install g++, or leave compile out.")


class CompiledStep:
    """A step that executes several operations as compiled code.

    See `hocket.profiling.capture.replay` for steps.

    Attributes:
        cold_s: seconds of the first call with gradients and the first without, which compile the code.
    """

    def __init__(
        self, name: str, nodes: Sequence[tuple[RecordedOperation, Call]], dead: Collection[int], backend: str
    ) -> None:
        """Build the function. Its first call compiles it.

        Arguments:
            name: layer name for errors.
            nodes: operations with the calls that execute them.
            dead: indices of values that are not read after these operations.
        """
        self._name = name
        made = {value for node, _ in nodes for value in node.writes}
        graph, modules = fx.Graph(), dict[str, nn.Module]()
        read = (v for node, _ in nodes for v in (*node.reads, *(before for before, _ in node.aliases)))
        self._reads = tuple(dict.fromkeys(v for v in read if v not in made))
        env: dict[int, Any] = {v: graph.placeholder(f"v{v}") for v in self._reads}
        for node, (target, args, kwargs) in nodes:
            args, kwargs = filled(args, env), filled(kwargs, env)
            if isinstance(target, nn.Module):
                path = f"m{len(modules)}"
                modules[path] = target
                result = graph.call_module(path, args, kwargs)
            else:
                result = graph.call_function(target, args, kwargs)
            for path_in, slot in node.outputs:
                found = result
                for how, key in path_in:
                    found = graph.call_function(operator.getitem if how == "item" else getattr, (found, key))
                env[slot] = found
            env.update({after: env[before] for before, after in node.aliases})
        self._writes = tuple(v for v in env if v in made and v not in dead)
        graph.output(tuple(env[v] for v in self._writes))
        options: Any = _AS_WITHOUT if backend == "inductor" else None
        self._call = torch.compile(
            fx.GraphModule(modules, graph), fullgraph=True, dynamic=False, backend=backend, options=options
        )
        self._dead = tuple(v for v in dead if v not in made)
        self.cold_s = 0.0
        self._warm: set[bool] = set()

    def __call__(self, env: list[Any]) -> None:
        """Execute the operations.

        Arguments:
            env: the values of a run, by index; the results are written into it.

        Raises:
            CaptureError: torch cannot compile the operations.
        """
        warm = torch.is_grad_enabled() in self._warm
        found = self._call(*[env[v] for v in self._reads]) if warm else self._first(env)
        for slot, tensor in zip(self._writes, found, strict=True):
            env[slot] = tensor
        watch = _get_current_dispatch_mode()
        if isinstance(watch, StorageTracker):  # as any operation: results, and tensors kept for its backward
            watch.register(found)
            for node in {tensor.grad_fn for tensor in found if tensor.grad_fn is not None}:
                watch.register(tensor for tensor in getattr(node, "saved_tensors", ()) if tensor is not None)
        for slot in self._dead:
            env[slot] = None

    def _first(self, env: list[Any]) -> Any:
        start_s = time.perf_counter()
        try:
            with unwarned(""):  # warnings of torch's compiler are not the user's
                found = self._call(*[env[v] for v in self._reads])
        except torch._dynamo.exc.TorchDynamoException as error:
            said = " ".join(str(error).split("\n")[:2]).strip()
            raise CaptureError(
                f"layer {self._name}", said, "a layer that torch.compile compiles as one graph", _LEAVE
            ) from error
        self.cold_s += time.perf_counter() - start_s
        self._warm.add(torch.is_grad_enabled())
        return found
