"""Floating-point dtypes in which a model computes.

They often differ from the dtype of the weights: norms, softmax and losses of Hugging Face models are float32 in any
model. The dtypes are found by observing the torch functions that one forward calls. Dtypes inside a function, in C++,
are not observed. The backward has the same dtypes as the forward.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from hocket.profiling.capture.capture import Captured, Stage


class _Met(TorchFunctionMode):
    """Function mode that tracks tensors that depend on the weights, and their dtypes.

    Other tensors, such as rotary tables, do not change with the division of a batch or with the order of gradient
    sums.

    Attributes:
        types: dtypes of the tracked tensors so far.
    """

    def __init__(self, weights: Iterable[Tensor]) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()
        self._depends = WeakTensorKeyDictionary()
        self._keep(weights)

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if any(tensor in self._depends for tensor in given):
            # Without a result, the function has written in place, such as `x[i] = y`; the target is the first argument.
            self._keep(tree_leaves(result) if result is not None else given[:1])
        return result

    def _keep(self, found: Iterable[Any]) -> None:
        for tensor in found:
            if isinstance(tensor, Tensor) and (tensor.is_floating_point() or tensor.is_complex()):
                self._depends[tensor] = True
                self.types.add(tensor.dtype)


def computed_types(captured: Captured) -> set[torch.dtype]:
    """Find the floating-point dtypes of weights and of tensors computed from them.

    It runs one forward of one microbatch.
    """
    stage = Stage(captured, range(len(captured.layers)))
    names, parameters = captured.batch_names, stage.parameters()
    batch = captured.job.batch([i % captured.job.samples for i in range(captured.microbatch_size)])
    values = {names[key]: value.to(stage.device) for key, value in batch.items() if key in names}
    met = _Met(parameters.values())
    devices = [stage.device] if stage.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad(), met:
        stage.run(values)
    return met.types
