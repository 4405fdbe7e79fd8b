"""Candidates that swap values to host memory.

They are proved to fit on devices and hosts for any timing, and simulated.

Rules of this file: the cluster file determines the memory of hosts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hocket.hardware.cluster import Cluster
from hocket.planning.burst.amplification_limit import Tolerance, held_s
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.model_differences import differences
from hocket.planning.predict.planned_run import PlannedRun
from hocket.planning.predict.predict import predict_run
from hocket.planning.predict.update_semantics import updates_of
from hocket.planning.search.failures import failed
from hocket.planning.search.result import Evaluated, Refused
from hocket.planning.swapping.budgets import by_server
from hocket.program.memory_bound.footprint import footprints
from hocket.program.passes.swapping.insert import sizes_of
from hocket.program.passes.swapping.settings import Swapping
from hocket.strategies.base.search_space import SearchSpace
from hocket.util.units import show_shortage


class SwapMiss(NamedTuple):
    """Reason why a plan that swaps is refused.

    Attributes:
        missing_bytes: bytes that are missing on a host; 0 for other reasons.
        host_bytes: bytes that this host needs.
    """

    reason: str
    missing_bytes: float = 0.0
    host_bytes: float = 0.0


@dataclass
class Packs:
    """Search results for plans that swap.

    Attributes:
        candidates: simulated plans that fit.
        refused: refused plans, with the reasons.
        considered: number of plans that were evaluated.
    """

    candidates: list[Evaluated] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    considered: int = 0


def has_hosts(space: SearchSpace) -> bool:
    """True if the host memory of every device's server is known."""
    return all(space.cluster.host_bytes(device) for device in range(space.cluster.devices))


def within(found: Packs, tolerance: Tolerance | None) -> Packs:
    """Move plans above the amplification limit to the refusals, smallest excess first.

    A plan that swaps holds its devices for the whole iteration. Amplification is relative to one device that has
    unlimited memory and does not swap (amplification.py).

    Arguments:
        tolerance: limit on amplification; None for no limit, which changes nothing.
    """
    if tolerance is None:
        return found
    kept = Packs(considered=found.considered)
    for one in sorted(found.candidates, key=lambda one: held_s(one.plan.stages, one.iteration_s)):
        used_s = held_s(one.plan.stages, one.iteration_s)
        text = tolerance.refusal(used_s)
        if text:
            config = f"{one.config} b{one.plan.microbatch_size}"
            kept.refused.append(Refused(one.strategy, config, text, swaps=True, too_much=True))
        else:
            kept.candidates.append(replace(one, amplification=used_s / tolerance.alone_s))
    kept.refused += found.refused
    return kept


def room_of(stages: tuple[PlanStage, ...], cluster: Cluster) -> float | tuple[float, ...]:
    """Memory of the stages' devices in bytes, as the value of `Swapping.device_bytes`.

    One number if all are equal, otherwise one for each device of the cluster.
    """
    used = {cluster.capacity_bytes(device) for stage in stages for device in stage.devices}
    return used.pop() if len(used) == 1 else tuple(cluster.capacity_bytes(d) for d in range(cluster.devices))


def tried(space: SearchSpace, plan: Plan, config: str, found: Packs, policy: str, ahead: int = 0) -> list[Evaluated]:
    """Prove and simulate a plan with swaps.

    Arguments:
        plan: a plan; its present `swap` is replaced.
        config: label of the plan.
        found: search results to which the candidate, or the reason for refusing it, is added.
        policy: swapping policy (`Swapping.policy`).
        ahead: number of operations ahead for which values are prefetched.

    Returns:
        The candidate in a list; an empty list if the plan is refused.
    """
    found.considered += 1
    cluster, profile, strategy = space.cluster, space.profile, plan.strategy
    try:
        plan = replace(plan, predicted=None, swap=Swapping(policy, room_of(plan.stages, cluster), prefetch=ahead))
        run = PlannedRun.of(plan, profile)
        miss, own_bytes = _missing(on_hosts(run), cluster)
        if miss is None:
            swap = run.sized_swap
            assert swap is not None
            if own_bytes > min(plan.host_bytes(cluster).values()):  # devices need unequal parts of the host
                swap = replace(swap, host_bytes=own_bytes)
            predicted = predict_run(replace(run, swap=swap))
    except Exception as error:
        found.refused.append(failed(strategy, f"{config} b{plan.microbatch_size}", error, swaps=True))
        return []
    if miss is not None:
        found.refused.append(
            Refused(
                strategy, f"{config} b{plan.microbatch_size}", miss.reason, miss.missing_bytes, True, miss.host_bytes
            )
        )
        return []
    differing = differences(profile.layers, profile.loss_parts)
    updates = updates_of(strategy, run.shapes, plan.batch_size, plan.microbatch_size, plan.options, differing)
    one = Evaluated(predicted, strategy, config, replace(plan, swap=swap, predicted=predicted), updates)
    found.candidates.append(one)
    return [one]


def _missing(own: Mapping[int, float], cluster: Cluster) -> tuple[SwapMiss | None, float]:
    """Missing host memory of a plan that swaps, for any timing.

    Arguments:
        own: host memory that each device needs, in bytes.

    Returns:
        The server with too little host memory that needs the most, or None; and the largest host memory that one
            device needs, 0 if a server has too little.
    """
    for server, size in sorted(by_server(own, cluster).items(), key=lambda pair: -pair[1]):
        has = cluster.host_bytes(server * cluster.levels[0].width) or 0.0
        if size > has:
            needed, available = show_shortage(size, has)
            text = f"the host of server {server} needs {needed} for swapped values and has {available}"
            return SwapMiss(text, size - has, size), 0.0
    return None, max(own.values())


def on_hosts(run: PlannedRun) -> dict[int, float]:
    """Peak host memory of each device of a plan that swaps, for any timing, in bytes.

    Sizes of values are read from the plan (`Swapping.stages`), which may be above the cost model's, because each is the
    maximum over all microbatches.

    Raises:
        RefusedError: the devices have no room for one of the plan's operations.
    """
    swap = run.sized_swap
    sizes = sizes_of(run.program, swap) if swap is not None else None
    assert sizes is not None, "a run that swaps has sizes of its values"
    found = footprints(run.program, sizes, host=True)
    return {device: there.bytes for device, there in found.items()}
