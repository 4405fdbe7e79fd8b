"""Verification of a capture: compare one forward and backward with the model.

Rules of this file: the model runs unmodified and does not change. A difference above rounding is always an error, never
a note.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from hocket.errors import CaptureError
from hocket.profiling.capture.capture import Captured, Stage
from hocket.profiling.capture.record_forward import untouched
from hocket.profiling.checks.index_errors import naming_samples
from hocket.profiling.checks.stable_calls import check_unchanging
from hocket.profiling.job.job import Job

_IN_PLACE = "modified by an inplace operation"


def verify(captured: Captured) -> bool:
    """Compare loss and gradients of the capture and of the model.

    Both run on the captured samples.

    Returns:
        False if a comparison is impossible: the model draws random numbers without influence on its loss.

    Raises:
        CaptureError: the results differ or are not finite, or the model's own backward fails. The error names the loss or
            the first parameter, or the operation that the model itself changes at each call.
    """
    trace, job = captured.graph.trace, captured.job
    used = {i for layer in captured.layers for i in layer.nodes}
    if any(node.random and i not in used for i, node in enumerate(trace.nodes)):
        return False
    model_loss, model_grads = _of_model(job, [i % job.samples for i in range(captured.microbatch_size)])
    _check_finite("loss", model_loss)
    for name, gradient in model_grads.items():
        _check_finite(f"gradient of {name}", gradient)
    stage = Stage(captured, range(len(captured.layers)))
    loss, grads = _of_stage(stage, captured.first_inputs(stage.device))
    tolerance = 10 * max(torch.finfo(t.dtype).eps for t in (model_loss, *model_grads.values())) ** 0.5
    if not bool((loss - model_loss).abs() <= tolerance * model_loss.abs()):
        check_unchanging(job)
        _differ("loss", loss.item(), model_loss.item())
    norm = torch.stack([g.double().norm() for g in model_grads.values()]).norm().item()
    for name, expected in model_grads.items():
        found = grads.get(name, torch.zeros_like(expected))
        apart = (found.double() - expected.double()).norm().item()
        # Some gradients are zero up to rounding (a bias before a normalisation). Their tolerance uses the global norm.
        if not apart <= tolerance * (expected.double().norm().item() + 0.01 * norm):
            check_unchanging(job)
            _differ(f"gradient of {name}", found.double().norm().item(), expected.double().norm().item())
    return True


def _check_finite(what: str, tensor: Tensor) -> None:
    """Refuse nan and infinity in what the model itself computes: they are equal to nothing."""
    values = tensor.coalesce().values() if tensor.is_sparse else tensor
    if not bool(torch.isfinite(values).all()):
        raise CaptureError(
            what,
            "nan or infinity, computed by the model itself from the first samples",
            "finite numbers",
            "Look for them in the data, the initial weights and the loss function.",
        )


def _differ(what: str, found: float, expected: float) -> None:
    hint = "Please report the model. Until then, move the code into a submodule without children, which is kept whole."
    raise CaptureError(
        what, f"{found:.9g} from the captured layers", f"{expected:.9g}, as the model itself gives", hint
    )


def _of_model(job: Job, indices: Sequence[int]) -> tuple[Tensor, dict[str, Tensor]]:
    weights = {name: p for name, p in job.model.named_parameters() if p.requires_grad}
    device = next(p.device for p in weights.values())
    batch = {key: value.to(device) for key, value in job.batch(indices).items()}
    with untouched(dict(job.model.named_modules()), device), torch.enable_grad():
        torch.manual_seed(0)
        with naming_samples(indices, batch):
            loss = job.loss_of(batch)
        try:
            grads = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        except RuntimeError as error:
            hint = (
                "Compute with a copy of what is changed in place afterwards, such as self.mean.clone()."
                if _IN_PLACE in str(error)
                else ""
            )
            expected = "a backward that works, as without Hocket"
            raise CaptureError("the model's backward", f"{type(error).__name__}: {error}", expected, hint) from error
    return loss.detach(), {name: g for name, g in zip(weights, grads, strict=True) if g is not None}


def _of_stage(stage: Stage, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    devices = [stage.device] if stage.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.enable_grad():
        torch.manual_seed(0)
        loss = stage.run(batch)[stage.captured.loss_tensor]
        torch.autograd.backward([loss])
    return loss.detach(), {name: p.grad for name, p in stage.parameters().items() if p.grad is not None}
