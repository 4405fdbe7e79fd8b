"""The public face in Python: five names. Everything that they return can be saved, shown, edited and handed on."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hocket.hardware.cluster import Cluster
from hocket.plan.plan import Plan
from hocket.plan.search import Search, search
from hocket.profile.job import Job
from hocket.profile.model import ModelProfile
from hocket.simulate.simulator import Summary
from hocket.trace.trace import Trace

__all__ = ["Job", "plan", "profile", "simulate", "train"]


def profile(job: Job, microbatch_sizes: Sequence[int] | None = None, **options: Any) -> ModelProfile:
    """Measure a job, layer by layer. See `hocket.profile.measure.measure` for the options.

    Raises:
        CaptureError: the model cannot be captured; names the module and the reason.
    """
    from hocket.profile.measure import measure

    return measure(job, tuple(microbatch_sizes), **options) if microbatch_sizes else measure(job, **options)


def plan(
    profile: ModelProfile, cluster: Cluster, batch_size: int, strategies: Sequence[str] = (), **options: Any
) -> Search:
    """Search for the best plan; `.best.plan` is it, `.candidates` are all, `.refused` says why not."""
    return search(profile, cluster, batch_size, strategies=strategies, **options)


def simulate(plan: Plan, profile: ModelProfile) -> tuple[Trace, Summary]:
    """Predict what a plan does: the trace of every instruction, and a summary."""
    from hocket.plan.predict import predict

    return predict(plan, profile)


def train(
    job: Job | str | Path,
    plan: Plan | str | Path,
    *,
    steps: int,
    on_step: Callable[[dict[str, Any]], None] | None = None,
    **options: Any,
) -> Any:
    """Train for real. See `hocket.run.loop.train` for the options."""
    from hocket.run.loop import train as run

    return run(job, plan, steps=steps, on_step=on_step, **options)
