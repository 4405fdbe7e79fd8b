"""Ranks of a plan: each worker's device and its name in messages; no torch."""

import os

from hocket.errors import InputError
from hocket.planning.plan import Plan


def check_workers(devices: tuple[int, ...], workers: int) -> None:
    """Require one worker for each device of the plan; raise InputError otherwise."""
    if workers != len(devices):
        hint = f"Start {len(devices)} workers, for example torchrun --nproc-per-node {len(devices)}, or plan for {workers}."
        raise InputError("workers", str(workers), f"{len(devices)}, one for each device of the plan", hint)


def shows_the_run() -> bool:
    """True if this process shows the run: it is torchrun's first worker, or no worker."""
    return os.environ.get("RANK", "0") == "0"


def devices_of(plan: Plan) -> tuple[int, ...]:
    """Return the plan's devices in the cluster, ascending; worker i runs the i-th.

    With tensor-parallel size t, device d has the tensor-parallel rank d % t in group d // t. Worker i has the
    tensor-parallel rank i % t.
    """
    named = sorted({device for stage in plan.stages for device in stage.devices})
    return tuple(group * plan.tensor + member for group in named for member in range(plan.tensor))


def worker_name(plan: Plan, rank: int) -> str:
    """Name a worker in messages: its rank, and its place in a tensor-parallel group."""
    if plan.tensor == 1:
        return f"worker {rank}"
    group, member = divmod(devices_of(plan)[rank], plan.tensor)
    return f"worker {rank}, member {member} of group {group}"
