"""Plans that swap: the bytes by which a plan decides what is swapped, worked out from its profile."""

from dataclasses import replace

from hocket.cost.model import CostModel
from hocket.cost.sizes import PlanSizes
from hocket.hardware.cluster import Cluster
from hocket.passes.swapping import stages_of
from hocket.passes.swaps import check_swaps
from hocket.plan.plan import Plan
from hocket.profile.model import ModelProfile


def completed(plan: Plan, profile: ModelProfile) -> Plan:
    """A plan with the bytes of its stages, by which it compiles to the same program wherever; as it is if it has them or needs none.

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


def host_bytes(plan: Plan, cluster: Cluster) -> dict[int, float]:
    """Bytes on its host that each device of a plan may have: what the plan says, or its part of what its server has."""
    found: dict[int, float] = {}
    for device in {d for stage in plan.stages for d in stage.devices}:
        said = plan.swap.host_bytes if plan.swap is not None else None
        whole = cluster.node_of(device).host_memory_bytes or cluster.host_memory_bytes
        if said is not None:
            found[device] = said
        elif whole is not None:
            found[device] = whole / cluster.levels[0].width
    return found
