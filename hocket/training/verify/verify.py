"""Verification: train a few steps with real workers and with a plain loop.

The loop applies the plan's update rule. The two sides share the job, its data order and its seeds, but no part of the
engine: reference_loop.py runs the undivided model. Differences between the update rule and one process are not detected
here, because the loop has them too (such as normalization over microbatches, or clipping by the norm of each stage).
The planner reports them.
"""

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hocket.errors import InputError
from hocket.planning.plan import Plan
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job_file import load_job
from hocket.runtime.checkpoint.checkpoint import newest
from hocket.runtime.kv_exchange import KVExchange
from hocket.runtime.stage.compute_dtypes import computed_types
from hocket.training.train import train
from hocket.training.verify.reference_loop import rule_loop, step_losses
from hocket.training.worker.monitor.listener import Quiet

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
"""Relative tolerance by the model's least exact dtype; for all others 10 * eps."""
_TINY = 1e-30


@dataclass(frozen=True)
class Verification:
    """Difference between the run of a plan and the plain loop.

    Attributes:
        steps: steps trained on both sides.
        rule: the plan's update rule.
        clips_by_stage: True if the job clips the gradients of each stage by their own norm. Both sides do.
        loss_error: largest error of a step's loss, relative to the plain loop's loss.
        weights_error: largest error of a parameter: norm of its difference, relative to the norm in the plain loop.
        worst: name of the parameter with this error.
        tolerance: allowed relative error of losses and weights.
        least_exact: sentence with the dtype that determines the tolerance: of the weights, or of a computation.
    """

    steps: int
    rule: str
    loss_error: float
    weights_error: float
    worst: str
    tolerance: float
    least_exact: str
    clips_by_stage: bool = False

    def __str__(self) -> str:
        by_stage = ", clipping each stage of the plan by its own norm" if self.clips_by_stage else ""
        return (
            f"{'good' if self.good else 'BAD'}: {self.steps} steps against a plain loop with the update rule "
            f"{self.rule}{by_stage}: losses differ by {self.loss_error:.2g}, weights by "
            f"{self.weights_error:.2g}{f' ({self.worst})' if self.worst else ''}, relative; {self.tolerance:.2g} is "
            f"allowed, for {self.least_exact}"
        )

    @property
    def good(self) -> bool:
        """True if both errors are within the tolerance."""
        return self.loss_error <= self.tolerance and self.weights_error <= self.tolerance


def verify(job: str | Path, plan: Plan, *, steps: int = 3, **options: Any) -> Verification:
    """Train `steps` steps with a plan; compare losses and weights with the plain loop.

    If the program cannot end after `steps` steps, it trains until the next step at which it can.

    Arguments:
        options: options of `train`, except those of checkpoints.

    Raises:
        InputError: job, plan or number of workers do not fit.
        WorkerLost: a worker died, failed or did not answer.
    """
    for name in ("checkpoint", "every", "keep", "resume"):
        if name in options:
            raise InputError(f"verify: {name}", repr(options[name]), "no checkpoint option", "Leave it out.")
    with tempfile.TemporaryDirectory(prefix="hocket-verify-") as folder:
        summary = train(
            job, plan, steps=steps, checkpoint=folder, every=steps, listener=Quiet(), callbacks=None, **options
        )
        found = newest(Path(folder), KVExchange(None, 0, 1), lambda text: None)
        if found is None:
            raise InputError(folder, "no readable checkpoint", "the checkpoint just written")
        state = found.load(lambda name: name.startswith("model."))
    captured = capture(load_job(job), plan.microbatch_size)
    program = plan.compile(captured)
    trained = rule_loop(captured, plan, program.rule, summary.steps * plan.microbatches)
    losses = step_losses(trained.losses, plan.microbatches)
    errors = {name: _distance(state[f"model.{name}"], tensor) for name, tensor in trained.weights.items()}
    weights = {tensor.dtype for tensor in trained.weights.values()}
    types = computed_types(captured) | weights
    worst = max(errors, key=lambda name: errors[name], default="")
    return Verification(
        steps=summary.steps,
        rule=program.rule.kind,
        loss_error=max((_relative(a, b) for a, b in zip(summary.losses, losses, strict=True)), default=0.0),
        weights_error=errors.get(worst, 0.0),
        worst=worst,
        tolerance=tolerance_of(types),
        least_exact=_least_exact(types, weights),
        clips_by_stage=any(stage.clips_alone for stage in program.stages),
    )


def tolerance_of(types: Iterable[torch.dtype]) -> float:
    """Return the allowed relative difference between two orders of the same sums.

    It depends on the least exact dtype. For example, a float64 model with a softmax in float32 rounds there. If two
    runs differ in the last bit of a float64 before the softmax, one may round up and the other down. So they agree only
    to float32.
    """
    return max((_allowed(dtype) for dtype in types), default=TOLERANCE[torch.float64])


def _allowed(dtype: torch.dtype) -> float:
    return TOLERANCE.get(dtype, 10 * torch.finfo(dtype).eps)


def _least_exact(types: Iterable[torch.dtype], weights: Iterable[torch.dtype]) -> str:
    least = max(types, key=_allowed, default=torch.float64)
    own = sorted({str(dtype).removeprefix("torch.") for dtype in weights})
    name = str(least).removeprefix("torch.")
    return f"weights are {name}" if name in own else f"the model computes in {name} between weights of {', '.join(own)}"


def _relative(found: float, wanted: float) -> float:
    difference = abs(found - wanted)
    # A nan agrees with no value.
    return float("inf") if difference != difference else difference / max(abs(wanted), _TINY)


def _distance(found: Tensor, wanted: Tensor) -> float:
    wanted = wanted.cpu().double()
    difference = float((found.double() - wanted).norm())
    return float("inf") if difference != difference else difference / max(float(wanted.norm()), _TINY)
