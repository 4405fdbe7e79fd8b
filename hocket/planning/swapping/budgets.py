"""Plans that swap: the bytes by which a plan decides what is swapped, worked out from its profile; and what devices and hosts may hold.

Rules of this file: a plan's own limits are what a run is held to; its cluster says what there is, and how much each device has of its
host where the plan does not. Limits above that are asked of the program: whether what can be there at once, whatever the timing, is
there to be had.
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
    """The plan with the sizes of its stages, so that it compiles to the same program anywhere.

    Unchanged if it has them, or does not swap.

    Arguments:
        profile: of what the plan's device numbers stand for.

    Raises:
        InputError: the plan does not fit the profile. RefusedError: its strategy does not support it, or swaps.
    """
    if plan.swap is None or plan.swap.stages:
        return plan
    costs = CostModel(profile, plan.group.cluster, plan.cuts(profile), plan.batches.sizes, swaps=True)
    program = replace(plan, swap=None).compile(profile)
    check_swaps(program)
    return replace(plan, swap=replace(plan.swap, stages=stages_of(program, PlanSizes(costs, program))))


def by_server(on_hosts: Mapping[int, float], cluster: Cluster) -> dict[int, float]:
    """Bytes on the host of each server, summed over its devices."""
    found: dict[int, float] = {}
    for device, size in on_hosts.items():
        server = cluster.component(device, 1)
        found[server] = found.get(server, 0.0) + size
    return found


def claims_more(plan: Plan) -> bool:
    """True if a plan that swaps lets a device or host hold more than the cluster has."""
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
    """Bytes that each device of a program may hold: what its cluster says, or less where the plan says so."""
    cluster = plan.group.cluster
    own = {d: cluster.capacity_bytes(d) for d in program.devices}
    return own if plan.swap is None else {d: min(has, plan.swap.budget_bytes(d) or has) for d, has in own.items()}


def swap_problems(plan: Plan, program: Program, sizes: Sizes) -> tuple[Problem, ...]:
    """Problems of the program of a plan that swaps: those of `check`, and hosts without enough memory."""
    cluster = plan.group.cluster
    said = plan.host_bytes(cluster)
    found = check(program, value_bytes=sizes, capacity_bytes=capacity_of(plan, program), host_bytes=said)
    if found or plan.swap is None or plan.swap.host_bytes is None:  # otherwise each has its even part of what there is
        return found
    own = {device: there.bytes for device, there in footprints(program, sizes, host=True).items()}
    return tuple(_lacking(own, cluster))


def limit_problems(plan: Plan, program: Program) -> tuple[Problem, ...]:
    """Problems of a program that swaps within limits that are too low.

    Sizes are the plan's own bytes; limits are the plan's or its cluster's.
    """
    limited = plan.swap is not None and (claims_more(plan) or bool(plan.host_bytes(plan.group.cluster)))
    sizes = sizes_of(program, plan.swap) if plan.swap is not None and plan.swap.stages and limited else None
    return swap_problems(plan, program, sizes) if sizes is not None else ()


def prove_limits(plan: Plan, program: Program) -> None:
    """Refuse a program that swaps by the bytes that stand in its plan.

    Raises:
        ProgramError: it may need more than its limits or its cluster's, as `hocket check` says it.
    """
    problems = limit_problems(plan, program)
    if problems:
        raise ProgramError(f"program {program.name}", report(program, problems), "a legal program")


def _lacking(on_hosts: Mapping[int, float], cluster: Cluster) -> list[Problem]:
    """Servers whose devices may have more on the host than it has."""
    found = []
    for server, size in by_server(on_hosts, cluster).items():
        has = cluster.host_bytes(server * cluster.levels[0].width)
        if has is not None and size > has:
            text = f"the host of server {server} may hold up to {show_bytes(size)} of its devices' values; expected at most "
            found.append(Problem("memory", f"{text}{show_bytes(has)}. Take a host with more memory, or recompute."))
    return found
