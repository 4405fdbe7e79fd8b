"""Check that repeated calls of a model run equal operations.

Samples, weights and random numbers are equal in all calls.

Rules of this file: the check runs only after a failed capture, to explain the failure in the error. The model does not
change, except for state in plain attributes.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hocket.errors import CaptureError
from hocket.profiling.capture.record_forward import all_modules, untouched
from hocket.profiling.capture.recorded_graph import flatten, function_name
from hocket.profiling.data.checksums import Sums, difference, sums_of
from hocket.profiling.job.job import Job

_CALLS = 3
_SAMPLES = 2
_MAX_OPERATIONS = 100_000
HINT = (
    "Let the forward depend on its inputs and weights alone: count calls outside of the model, choose values with torch.where, "
    "draw with torch's random numbers, and keep state in a buffer that is changed in place."
)


class _Done(NamedTuple):
    """One operation of a call: its module, name, and checksums of its results."""

    path: str
    name: str
    results: tuple[Sums, ...]


class _Log(TorchFunctionMode):
    """Recorder of the operations of one call."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[_Done] = []
        self.stack = [""]

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        results = [tensor for _, tensor in flatten(result)]
        if results and len(self.done) < _MAX_OPERATIONS:
            with torch._C.DisableTorchFunction():  # do not record the operations of this recorder
                sums = tuple(
                    sums_of({"result": t.detach().reshape(1, -1)})[0] for t in results if t.layout == torch.strided
                )
            self.done.append(_Done(self.stack[-1], function_name(function), sums))
        return result


def check_unchanging(job: Job) -> None:
    """Call the model and its loss several times on equal samples.

    Raises:
        CaptureError: a call differs from the first call; the error names the module and the operation.
    """
    batch = job.batch(range(min(_SAMPLES, job.samples)))
    modules = all_modules(job.model, job.loss)
    device = next((p.device for p in job.model.parameters()), torch.device("cpu"))
    batch = {key: value.to(device) for key, value in batch.items()}
    first: list[_Done] | None = None
    for number in range(_CALLS):
        done = _done(job, modules, batch, device)
        if first is None:
            first = done
        elif told := _difference(first, done):
            path, found = told
            place = f"module {path}" if path else "model"
            expected = "equal operations and results at every call with the same samples"
            raise CaptureError(place, f"{found}, at call {number + 1}, compared with the first", expected, HINT)


def _done(job: Job, modules: dict[str, nn.Module], batch: dict[str, Tensor], device: torch.device) -> list[_Done]:
    log, handles = _Log(), []
    for path, module in modules.items():
        handles.append(module.register_forward_pre_hook(lambda m, args, path=path: log.stack.append(path)))
        handles.append(module.register_forward_hook(lambda m, args, out: _pop(log.stack), always_call=True))
    try:
        with untouched(modules, device), torch.no_grad():
            torch.manual_seed(0)
            with log:
                job.loss_of(batch)
    finally:
        for handle in handles:
            handle.remove()
    return log.done


def _pop(stack: list[str]) -> None:
    stack.pop()


def _difference(first: Sequence[_Done], other: Sequence[_Done]) -> tuple[str, str] | None:
    """Return module and description of the first different operation, if any."""
    for one, two in zip_longest(first, other):
        if one is None or two is None:
            there = one or two
            return there.path, f"operation `{there.name}` {'left out' if two is None else 'besides'}"
        if (one.path, one.name) != (two.path, two.name):
            inside = f" of {two.path or 'the model itself'}" if two.path != one.path else ""
            return one.path, f"operation `{two.name}`{inside} instead of `{one.name}`"
        if len(one.results) != len(two.results) or any(map(difference, one.results, two.results)):
            return one.path, f"other results of operation `{one.name}`"
    return None
