"""Memory limits of plans that swap.

Which values a plan swaps follows from the sizes of its stages' values, which come from the profile. This module adds
the sizes to a plan, and checks the limits of devices and hosts.

Rules of this file: a run is held to the plan's own limits. Without them, the cluster defines the memory of devices,
and each device's part of its host's memory. If a plan's limits exceed the cluster's, the program is checked against
the cluster: its values must fit for any timing.
"""

from collections.abc import Mapping
from dataclasses import replace

from hocket.cost.model import CostModel
from hocket.cost.sizes import PlanSizes
from hocket.errors import ProgramError
from hocket.hardware.cluster import Cluster
from hocket.planning.plan import Plan
from hocket.profiling.profile import ModelProfile
from hocket.program.check.check import check, report
from hocket.program.check.problem import Problem
from hocket.program.memory_bound.footprint import Sizes, footprints
from hocket.program.passes.swapping.insert import check_swaps, sizes_of
from hocket.program.passes.swapping.settings import stages_of
from hocket.program.program import Program
from hocket.util.units import show_bytes


def completed(plan: Plan, profile: ModelProfile) -> Plan:
    """Add the sizes of its stages' values to a plan that swaps (`Swapping.stages`).

    The plan's program depends on them. A plan that has them, or that does not swap, stays the same.

    Arguments:
        profile: profile of the plan's devices, or of its tensor-parallel groups.

    Raises:
        InputError: the plan does not fit the profile.
        RefusedError: the strategy does not support the plan, or does not support swapping.
    """
    if plan.swap is None or plan.swap.stages:
        return plan
    costs = CostModel(profile, plan.group.cluster, plan.cuts(profile), plan.batches.sizes, swaps=True)
    program = replace(plan, swap=None).compile(profile)
    check_swaps(program)
    return replace(plan, swap=replace(plan.swap, stages=stages_of(program, PlanSizes(costs, program))))


def by_server(on_hosts: Mapping[int, float], cluster: Cluster) -> dict[int, float]:
    """Bytes on the host of each server, summed over the server's devices.

    Arguments:
        on_hosts: bytes of host memory by device.
    """
    found: dict[int, float] = {}
    for device, size in on_hosts.items():
        server = cluster.component(device, 1)
        found[server] = found.get(server, 0.0) + size
    return found


def claims_more(plan: Plan) -> bool:
    """True if a plan's limits for a device or host exceed the cluster's memory."""
    swap, cluster = plan.swap, plan.group.cluster
    if swap is None:
        return False
    devices = {device for stage in plan.stages for device in stage.devices}
    if any((swap.budget_bytes(d) or 0.0) > cluster.capacity_bytes(d) for d in devices):
        return True
    if swap.host_bytes is None:
        return False
    together = by_server(dict.fromkeys(devices, swap.host_bytes), cluster)
    return any(
        size > (cluster.host_bytes(server * cluster.levels[0].width) or size) for server, size in together.items()
    )


def capacity_of(plan: Plan, program: Program) -> dict[int, float]:
    """Bytes that each device of a program may hold.

    This is the device's memory in the cluster, or the plan's limit if it is lower.
    """
    cluster = plan.group.cluster
    own = {d: cluster.capacity_bytes(d) for d in program.devices}
    return own if plan.swap is None else {d: min(has, plan.swap.budget_bytes(d) or has) for d, has in own.items()}


def swap_problems(plan: Plan, program: Program, sizes: Sizes) -> tuple[Problem, ...]:
    """Problems of the program of a plan that swaps.

    They are the problems found by `check`. If there are none, and the plan has a limit for hosts, they are servers
    with too little host memory for all their devices together.

    Arguments:
        sizes: bytes of the program's values.
    """
    cluster = plan.group.cluster
    said = plan.host_bytes(cluster)
    found = check(program, value_bytes=sizes, capacity_bytes=capacity_of(plan, program), host_bytes=said)
    if found or plan.swap is None or plan.swap.host_bytes is None:  # no limit: equal parts of the host
        return found
    own = {device: there.bytes for device, there in footprints(program, sizes, host=True).items()}
    return tuple(_lacking(own, cluster))


def limit_problems(plan: Plan, program: Program) -> tuple[Problem, ...]:
    """Problems of a program that swaps, with sizes of values from its plan.

    Limits are the plan's, or else the cluster's. There are no problems, (), without sizes or limits.
    """
    limited = plan.swap is not None and (claims_more(plan) or bool(plan.host_bytes(plan.group.cluster)))
    sizes = sizes_of(program, plan.swap) if plan.swap is not None and plan.swap.stages and limited else None
    return swap_problems(plan, program, sizes) if sizes is not None else ()


def prove_limits(plan: Plan, program: Program) -> None:
    """Refuse a program that swaps if the sizes in its plan exceed the limits.

    Raises:
        ProgramError: the program may need more than the plan's or the cluster's limits, as in `hocket check`.
    """
    problems = limit_problems(plan, program)
    if problems:
        raise ProgramError(f"program {program.name}", report(program, problems), "a legal program")


def _lacking(on_hosts: Mapping[int, float], cluster: Cluster) -> list[Problem]:
    """Problems of servers with too little host memory for their devices.

    Arguments:
        on_hosts: bytes of host memory that each device needs.
    """
    found = []
    for server, size in by_server(on_hosts, cluster).items():
        has = cluster.host_bytes(server * cluster.levels[0].width)
        if has is not None and size > has:
            text = f"the host of server {server} may hold up to {show_bytes(size)} of its devices' values; expected at most "
            found.append(Problem("memory", f"{text}{show_bytes(has)}. Take a host with more memory, or recompute."))
    return found
