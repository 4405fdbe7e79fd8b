"""Swaps for a program with values that do not fit into its devices.

Missing values are swapped in, and room is made for them.

Rules of this file: each device is handled alone (device.py), with reduced limits until its memory bound, over every
timing, is within the budget. This file also knows which programs can swap.
"""

from collections.abc import Mapping
from dataclasses import replace

from hocket.errors import RefusedError
from hocket.program.instruction import COMPUTE, Instruction, Kind
from hocket.program.memory_bound.footprint import Sizes, footprints
from hocket.program.passes.swapping.device import SwappedDevice, TooFewBytes
from hocket.program.passes.swapping.operations import Habits
from hocket.program.passes.swapping.settings import StageSizes, Swapping
from hocket.program.program import Program, freeze
from hocket.util.compatibility import Feature, check_together
from hocket.util.units import enough_bytes, show_bytes

_ROUNDS = 7  # attempts with reduced limits until the memory bound is within the budget
_LEAST_PARTS = 1024  # a limit is reduced by at least the budget divided by this number


def with_swaps(program: Program, swapping: Swapping, habits: Habits, sizes: Sizes | None = None) -> Program:
    """Add swaps to a program.

    Each period then begins and ends with all weights and optimizer state on the host.

    Arguments:
        habits: properties of the strategy's order.
        sizes: bytes for decisions and proof; None: the figures of `swapping`.

    Raises:
        RefusedError: an operation needs more than the budget, values exceed the host's limit, or the program cannot
            swap.
    """
    check_swaps(program)
    if sizes is None:
        sizes = sizes_of(program, swapping)
    found = _fitting(program, swapping, habits, sizes)
    if sizes is not None and swapping.host_bytes is not None:
        for device, host in footprints(found, sizes, host=True).items():
            if host.bytes > swapping.host_bytes:
                raise RefusedError(
                    f"swap.host_bytes of device {device}",
                    f"{show_bytes(swapping.host_bytes)}, but {show_bytes(host.bytes)} of its values are on the host at "
                    "once",
                    next_step=f"Set host_bytes: {enough_bytes(host.bytes)} or more, or leave the key out to use the "
                    "device's part of host_memory_bytes.",
                )
    return found


def _fitting(program: Program, swapping: Swapping, habits: Habits, sizes: Sizes | None) -> Program:
    """Insert swaps so that every device's budget holds for any timing.

    Messages wait, and values that are swapped beside computation stay longer than the draft assumes. So the draft's
    limit is reduced by the excess over the budget, in growing steps because a small reduction may change no swap.

    Raises:
        RefusedError: the budget is too small.
    """
    limits, over = {device: swapping.budget_bytes(device) for device in program.devices}, dict[int, float]()
    budgets = {device: budget or 0.0 for device, budget in limits.items()}
    least, steps = dict.fromkeys(program.devices, 0.0), dict.fromkeys(program.devices, 1)
    for _ in range(_ROUNDS):
        try:
            found = _swapped(program, swapping, habits, sizes, limits)
        except TooFewBytes as missing:
            if not over:
                raise RefusedError(missing.place, missing.found, next_step=missing.next_step) from None
            device = missing.device  # one operation needs more than the limit: smaller limits are not tried again
            least[device] = limits[device] = (limits[device] or 0.0) + missing.bytes
            continue
        if sizes is None or swapping.device_bytes is None:
            return found
        over = {d: one.bytes - budgets[d] for d, one in footprints(found, sizes).items() if one.bytes > budgets[d]}
        if not over:
            return found
        for device, excess in over.items():
            less = (limits[device] or 0.0) - max(excess, budgets[device] / _LEAST_PARTS) * steps[device]
            limits[device], steps[device] = max(less, least[device]), 2 * steps[device]
    device, excess = max(over.items(), key=lambda pair: pair[1])
    raise RefusedError(
        f"swap.device_bytes of device {device}",
        f"{show_bytes(budgets[device])}, but with every possible swap up to {show_bytes(excess)} more may be resident "
        "at once",
        next_step="Use smaller stages or microbatches, or prefetch less.",
    )


def check_swaps(program: Program) -> None:
    """Refuse a program that cannot swap.

    Raises:
        RefusedError: its update rule is neither `sync` nor `evaluation`, or its state is sharded.
    """
    late = [Feature.ASYNCHRONOUS] if program.rule.kind not in ("sync", "evaluation") else []
    divided = [Feature.SHARD_FULL if s.gathers else Feature.SHARD_OPTIMIZER for s in program.stages if s.sharded]
    check_together("swap", Feature.SWAP, *late, *divided)


def sizes_of(program: Program, swapping: Swapping) -> StageSizes | None:
    """Bytes of each stage's values, from the figures of the plan.

    Returns:
        None if policy `task` without a device limit needs no figures, and the plan does not have them for all stages.

    Raises:
        RefusedError: needed figures are missing, or do not fit the stages.
    """
    if swapping.stages and len(swapping.stages) == len(program.stages):
        stages = program.stages
        _check_lists(program, swapping)
        return StageSizes(swapping.stages, tuple(s.targets for s in stages), tuple(s.devices for s in stages))
    if swapping.policy == "task" and swapping.device_bytes is None:
        return None
    raise RefusedError(
        "swap.stages",
        f"bytes of {len(swapping.stages)} stages of {len(program.stages)}",
        next_step="Leave swap.stages out and put the profile where the plan says: they are computed from it. "
        "`hocket plan` writes them.",
    )


def _check_lists(program: Program, swapping: Swapping) -> None:
    """Refuse figures of a stage for other numbers of buckets or targets than it has."""
    for s, (stage, said) in enumerate(zip(program.stages, swapping.stages, strict=True)):
        counts = {
            "gradients_bytes": stage.buckets,
            "activations_bytes": len(stage.targets),
            "activation_gradients_bytes": len(stage.targets),
        }
        for key, count in counts.items():
            if len(getattr(said, key)) != count:
                raise RefusedError(
                    f"swap.stages.{s}.{key}",
                    f"{len(getattr(said, key))} numbers, for {count} of the stage",
                    next_step="Leave swap.stages out: they are computed from the profile.",
                )


def _swapped(
    program: Program, swapping: Swapping, habits: Habits, sizes: Sizes | None, limits: Mapping[int, float | None]
) -> Program:
    lanes = {lane: list(row) for lane, row in program.period.items()}
    for device in program.devices:
        lanes[device, COMPUTE] = []
        for i in SwappedDevice(program, device, swapping, habits, sizes, limits[device]).instructions():
            lanes.setdefault((device, i.lane), []).append(i)
    if not habits.peer:
        lanes = {lane: [_through_host(i) for i in row] for lane, row in lanes.items()}
    return replace(program, name=f"{program.name} swaps {swapping.policy}", period=freeze(lanes), swaps=True)


def _through_host(i: Instruction) -> Instruction:
    """Turn a send or receive between devices into one between their hosts.

    Other instructions are returned unchanged.
    """
    if i.kind not in (Kind.SEND, Kind.RECEIVE):
        return i
    reads, writes, frees = (tuple(v._replace(copy=1) for v in row) for row in (i.reads, i.writes, i.frees))
    return replace(i, reads=reads, writes=writes, frees=frees)
