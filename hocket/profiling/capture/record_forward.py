"""Recorder of one forward pass of a model and its loss; the model is unchanged.

Rules of this file: only the record survives. Buffers, random numbers, training mode and gradients are the same after
the recording as before.
"""

import random as python_random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hocket.errors import CaptureError
from hocket.profiling.analytic.fake_tensors import is_fake
from hocket.profiling.capture.recorded_graph import LOSS, Call, RecordedGraph, function_name
from hocket.profiling.capture.recorder import Recorder, storage_of
from hocket.profiling.job.loss_weight import loss_in


@contextmanager
def untouched(modules: dict[str, nn.Module], device: torch.device) -> Iterator[None]:
    """Context in which the modules have copies of their buffers.

    Afterwards the buffers, the modes of training, `requires_grad` of the parameters and the states of torch's random
    generators are restored.
    """
    flags = [(p, p.requires_grad) for module in modules.values() for p in module.parameters(recurse=False)]
    owners = [(module, key, b) for module in modules.values() for key, b in module._buffers.items() if b is not None]
    copies = {id(b): b.clone() for _, _, b in owners}
    devices = [device] if device.type == "cuda" else []
    training = [(module, module.training) for module in modules.values()]
    with torch.random.fork_rng(devices=devices):
        for module, key, b in owners:
            module._buffers[key] = copies[id(b)]
        try:
            yield
        finally:
            for module, key, b in owners:
                module._buffers[key] = b
            for module, mode in training:
                module.training = mode
            for p, trained in flags:
                p.requires_grad = trained


def all_modules(model: nn.Module, loss: Any) -> dict[str, nn.Module]:
    """Return the modules of the model, and of a loss that is a module, by path.

    Modules of the loss have paths that begin with `<loss>`.

    Raises:
        CaptureError: the loss has parameters.
    """
    modules = dict(model.named_modules())
    if isinstance(loss, nn.Module):
        for path, module in loss.named_modules(prefix=LOSS):
            modules.setdefault(path, module)
        weight = next((name for name, _ in loss.named_parameters()), None)
        if weight is not None:
            hint = "Put the loss into the model and return its value as `loss`."
            raise CaptureError("Job.loss", f"parameter {weight!r}", "a loss without parameters", hint)
    return modules


def record(
    model: nn.Module,
    loss: Any,
    job: Any,
    batch: dict[str, Tensor],
    opaque: frozenset[str] = frozenset(),
    as_tracing: bool = False,
) -> RecordedGraph:
    """Run `loss(model(*inputs), *targets)` once on `batch` and record it.

    The model is unchanged.

    Arguments:
        loss: loss function. One with an attribute `numbers` returns that many numbers: the loss, and metrics.
        job: splits the batch into arguments of the model and of the loss (`Job.split`).
        opaque: paths of modules that are recorded as one operation each.
        as_tracing: True to let `torch.jit.is_tracing()` return True for the model. Libraries then skip shortcuts that
            depend on the data.

    Raises:
        CaptureError: the model does something that cannot be repeated from the record. The error names the module.
    """
    modules = all_modules(model, loss)
    weights = dict(model.named_parameters())
    device = next((p.device for p in weights.values()), torch.device("cpu"))
    batch = {key: value.to(device) for key, value in batch.items()}
    recorder = Recorder(modules, opaque, device)
    plain = nn.Module.__call__

    def stand_in(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return recorder.call_module(plain, module, args, kwargs)

    with untouched(modules, device), torch.enable_grad():
        for name, parameter in weights.items():
            recorder.add(parameter, "parameter", name, fixed=False)
        buffers = {f"{path}.{key}".lstrip("."): (m, key) for path, m in modules.items() for key in m._buffers}
        buffers = {name: owner for name, owner in buffers.items() if owner[0]._buffers[owner[1]] is not None}
        start, given, versions = {}, {}, {}
        for name, (module, key) in buffers.items():
            buffer = module._buffers[key]
            assert buffer is not None
            start[name], given[name], versions[name] = buffer.clone(), buffer, buffer._version
            if id(buffer) not in recorder.number:
                recorder.add(buffer, "buffer", name, fixed=True)
        for name, tensor in batch.items():
            recorder.add(tensor, "batch", name, fixed=False)
        args, kwargs, loss_args, loss_kwargs = job.split(batch)
        held = {(path, key): x for path, m in modules.items() for key, x in vars(m).items() if isinstance(x, Tensor)}
        flags = {name: parameter.requires_grad for name, parameter in weights.items()}
        dice = python_random.getstate()
        nn.Module.__call__ = stand_in  # type: ignore[method-assign, assignment]
        is_tracing = torch.jit.is_tracing  # type: ignore[attr-defined]
        if as_tracing:
            torch.jit.is_tracing = _yes  # type: ignore[attr-defined]
        try:
            with recorder:
                result = model(*args, **kwargs)
                result = _loss_of(recorder, loss, result, loss_args, loss_kwargs)
        except CaptureError:
            raise
        except Exception as error:
            path = recorder.calls[recorder.stack[-1]].path
            text = f"{type(error).__name__}: {error}"
            samples = next((len(t) for t in batch.values()), 0)
            expected = f"a forward and a loss that work on a microbatch of {samples} samples"
            raise CaptureError(f"module {path or '(root)'}", text, expected) from error
        finally:
            nn.Module.__call__ = plain  # type: ignore[method-assign]
            torch.jit.is_tracing = is_tracing  # type: ignore[attr-defined]
        for name, (module, key) in buffers.items():
            if module._buffers[key] is not given[name]:
                hint = f"Change it in place, such as self.{key}.copy_(value)."
                raise CaptureError(f"buffer {name}", "replaced by another tensor", "a buffer changed in place", hint)
        for name, parameter in weights.items():
            if parameter.requires_grad != flags[name]:
                found = f"requires_grad={parameter.requires_grad} after the forward, {flags[name]} before"
                raise CaptureError(f"parameter {name}", found, "the same value", "Set it back in the forward.")
        for (path, key), before in held.items():
            if vars(modules[path]).get(key) is not before and id(before) in recorder.number:
                name = f"{path}.{key}".lstrip(".")
                hint = f"Use register_buffer for it, and change it in place, such as self.{key}.copy_(value)."
                raise CaptureError(
                    f"attribute {name}", "a tensor that the forward reads and replaces", "a buffer", hint
                )
        if is_fake():
            unsaid = recorder.changed_unsaid
            changed = frozenset(n for n, b in given.items() if b._version != versions[n] or storage_of(b) in unsaid)
        else:
            # The written value may equal the old one here, and differ for another batch: a changed version counts
            # too.
            changed = frozenset(n for n, b in given.items() if b._version != versions[n] or not _same(start[n], b))
    if python_random.getstate() != dice:
        python_random.setstate(dice)
        raise CaptureError(
            "model", "random numbers of Python's `random` in the forward", "torch's random numbers",
            "A path that is chosen at random cannot be planned. Fix the path, or use torch's dropout.",
        )  # fmt: skip
    if not isinstance(result, Tensor) or result.numel() != getattr(loss, "numbers", 1) or not result.requires_grad:
        found = f"shape {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
        raise CaptureError("Job.loss", found, "one number that requires a gradient: the mean over samples")
    recorder.calls[0].end = len(recorder.nodes)
    return RecordedGraph(recorder.values, recorder.nodes, recorder.calls, recorder.number[id(result)], changed, ())


def _yes() -> bool:
    return True


def _loss_of(recorder: Recorder, loss: Any, output: Any, args: Any, kwargs: Any) -> Any:
    if loss is None:
        return loss_in(output)
    if isinstance(loss, nn.Module):
        return loss(output, *args, **kwargs)
    call = Call(LOSS, function_name(loss), 0, len(recorder.nodes))
    recorder.calls.append(call)
    recorder.stack.append(len(recorder.calls) - 1)
    result = loss(output, *args, **kwargs)
    recorder.stack.pop()
    call.end = len(recorder.nodes)
    return result


def _same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and bool(torch.equal(first, second))
