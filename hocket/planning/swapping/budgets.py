"""Memory limits of plans on devices and hosts.

Rules of this file: a run is held to the plan's own limits. Without them, the cluster defines the memory of devices,
and each device's part of its host's memory. If a plan's limits exceed the cluster's, the program is checked against
the cluster: its values must fit for any timing.
"""

from collections.abc import Mapping

from hocket.hardware.cluster import Cluster
from hocket.planning.plan import Plan
from hocket.program.check.check import check
from hocket.program.check.problem import Problem
from hocket.program.memory_bound.footprint import Sizes, footprints
from hocket.program.passes.swapping.insert import sizes_of
from hocket.program.program import Program
from hocket.util.units import show_bytes


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


def limit_problems(plan: Plan, program: Program, sizes: Sizes | None = None) -> tuple[Problem, ...]:
    """Problems of a program under the memory limits of its plan and its cluster.

    The program is checked first (check.py). If it is legal and the plan has a limit for hosts, there is one problem for
    each server that has too little memory for all its devices together.

    Arguments:
        sizes: bytes of the program's values; None for the sizes that the plan records. Nothing is checked if the plan
            records none, or if neither the plan nor the cluster limits swaps.

    Returns:
        The problems found; () if there are none, or if nothing is checked.
    """
    swap, cluster = plan.swap, plan.group.cluster
    has = {d: cluster.capacity_bytes(d) for d in program.devices}
    limits = {} if swap is None else {d: swap.budget_bytes(d) or size for d, size in has.items()}
    on_hosts = plan.host_bytes(cluster) if program.swaps else None
    if sizes is None:
        limited = on_hosts or any(limit > has[d] for d, limit in limits.items())
        sizes = sizes_of(program, swap) if swap is not None and swap.stages and limited else None
        if sizes is None:
            return ()
    most = {d: min(size, limits.get(d, size)) for d, size in has.items()}
    found = check(program, value_bytes=sizes, capacity_bytes=most, host_bytes=on_hosts)
    if found or not program.swaps or swap is None or swap.host_bytes is None:  # no limit: equal parts of the host
        return found
    own = {device: there.bytes for device, there in footprints(program, sizes, host=True).items()}
    return tuple(_lacking(own, cluster))


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
