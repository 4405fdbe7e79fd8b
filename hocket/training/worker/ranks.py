"""Workers of a plan: their number and their names in messages; no torch."""

import os

from hocket.errors import InputError


def check_workers(devices: tuple[int, ...], workers: int) -> None:
    """Require one worker for each device of the plan; raise InputError otherwise."""
    if workers != len(devices):
        hint = f"Start {len(devices)} workers, for example torchrun --nproc-per-node {len(devices)}, or plan for {workers}."
        raise InputError("workers", str(workers), f"{len(devices)}, one for each device of the plan", hint)


def shows_the_run() -> bool:
    """True if this process shows the run: it is torchrun's first worker, or no worker."""
    return os.environ.get("RANK", "0") == "0"


def worker_names(devices: tuple[int, ...], tensor: int) -> list[str]:
    """Names of all workers in messages: rank, and place in a tensor-parallel group.

    Arguments:
        devices: the plan's `worker_devices`.
        tensor: tensor-parallel size.
    """
    if tensor == 1:
        return [f"worker {rank}" for rank in range(len(devices))]
    places = (divmod(device, tensor) for device in devices)
    return [f"worker {rank}, member {member} of group {group}" for rank, (group, member) in enumerate(places)]
