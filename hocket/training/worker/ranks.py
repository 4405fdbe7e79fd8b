"""Ranks of a plan: each worker's device and its name in messages; no torch."""

import os

from hocket.errors import InputError
from hocket.planning.plan import Plan


def check_workers(devices: tuple[int, ...], workers: int) -> None:
    """Require one worker for each device of the plan."""
    if workers != len(devices):
        hint = f"Start {len(devices)} workers, for example torchrun --nproc-per-node {len(devices)}, or plan for {workers}."
        raise InputError("workers", str(workers), f"{len(devices)}, one for each device of the plan", hint)


def shows_the_run() -> bool:
    """True if this process shows the run: the only one, or torchrun's first worker."""
    return os.environ.get("RANK", "0") == "0"


def devices_of(plan: Plan) -> tuple[int, ...]:
    """Return the plan's devices in the cluster, ascending; worker i is the i-th.

    With tensor-parallel groups of t ranks, device d is rank d % t of group d // t, and worker i is rank i % t of its
    group.
    """
    named = sorted({device for stage in plan.stages for device in stage.devices})
    return tuple(group * plan.tensor + member for group in named for member in range(plan.tensor))


def worker_name(plan: Plan, rank: int) -> str:
    """Name a worker in messages: its number, and its place in a tensor-parallel group."""
    if plan.tensor == 1:
        return f"worker {rank}"
    group, member = divmod(devices_of(plan)[rank], plan.tensor)
    return f"worker {rank}, member {member} of group {group}"
