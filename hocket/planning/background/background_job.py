"""A plan together with a background job.

The background job is a plan for one device, or a profile with a batch size.

Rules of this file:
- The simulated plan is the plan, or an excerpt if it is long (excerpt.py).
- The period is repeated so often that background launches begin at many different moments of it.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hocket.cost.background.background import Background
from hocket.cost.contention import Collocation
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster
from hocket.planning.background.excerpt import PlanPart, part_of
from hocket.planning.load import LoadedPlan, open_plan
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import played
from hocket.profiling.profile import ModelProfile
from hocket.simulation.background.background import REPEATS, Collocated, background_of, collocate
from hocket.simulation.simulator import enough_repeats
from hocket.util.files import read_bytes

_MOST = 60_000  # maximum number of simulated instructions and launches together: some seconds of plain Python


def background_job(path: str | Path, cluster: Cluster, batch_size: int | None = None) -> Background:
    """Read a background job, as it runs alone on a cluster's first device.

    Arguments:
        path: a plan for one device, or a profile.
        batch_size: samples of each step; required for a profile, and not allowed for a plan.

    Raises:
        InputError: a plan for several devices or for another device type; a plan together with a batch size; a
            profile without a batch size, or with a larger one than was profiled.
    """
    place = str(path)
    if read_bytes(path).lstrip()[:1] != b"{":
        found = open_plan(path)
        if batch_size is not None:
            step = "Write it into the plan, or give the profile."
            raise InputError(
                "--background-batch", str(batch_size), f"none: the plan {place} contains its batch size", step
            )
        ours, theirs = found.plan.cluster.node_of(0).device_type, cluster.node_of(0).device_type
        if found.plan.tensor > 1:
            raise InputError(
                f"{place}: tensor", f"{found.plan.tensor} tensor-parallel ranks", "1, a plan for one device"
            )
        if ours != theirs:
            raise InputError(
                f"{place}: cluster",
                ours,
                f"{theirs}, the foreground's device type",
                "Give the background job as a profile.",
            )
        return background_of(played(found.shown, found.profile), f"{found.plan.model} ({place})")
    profile = ModelProfile.read(path)
    if batch_size is None:
        raise InputError("--background-batch", "nothing", f"samples of a step of {place}, which is a profile")
    largest = profile.microbatch_sizes[-1]
    if not 1 <= batch_size <= largest:
        expected = f"1 to {largest}, the most that was profiled"
        step = "Profile larger microbatches with `hocket profile -b`." if batch_size > largest else ""
        raise InputError("--background-batch", str(batch_size), expected, step)
    return background_of(played(alone(profile, cluster, batch_size), profile), f"{profile.name} ({place})")


def alone(profile: ModelProfile, cluster: Cluster, batch_size: int) -> Plan:
    """Plan for the first device of a cluster: one stage, one microbatch a batch."""
    stage = PlanStage(tuple(layer.name for layer in profile.layers), (0,))
    return Plan("data_parallel", profile.name, batch_size, batch_size, (stage,), cluster, dtype=profile.dtype)


def beside(
    opened: LoadedPlan,
    background: Background,
    rules: Collocation | None = None,
    devices: Iterable[int] | None = None,
    part: PlanPart | None = None,
) -> Collocated:
    """Simulate a plan with a background job on the devices of its cluster.

    Arguments:
        opened: the foreground plan.
        rules: how both jobs share a device; by default `Collocation()`.
        devices: devices that run the background job; by default all devices of the first device's type.
        part: part of the plan to simulate, from `part_of`; by default it is chosen here.

    Raises:
        InputError: a tensor-parallel plan, because its ranks wait for each other inside a layer; a device that is
            not in the cluster; or a plan too long to simulate, with no excerpt that is idle for a similar time.
    """
    plan = opened.plan
    if plan.tensor > 1:
        found = f"{plan.tensor}, with a background job"
        raise InputError(
            "tensor", found, "1: the simulator does not model waits between tensor-parallel ranks inside a layer"
        )
    first = plan.cluster.node_of(0).device_type
    alike = tuple(d for d in range(plan.cluster.devices) if plan.cluster.node_of(d).device_type == first)
    rules, chosen = rules or Collocation(), alike if devices is None else tuple(devices)
    part = part or part_of(opened, frozenset(chosen))
    simulated = [device for device in chosen if device not in part.twins]
    once = part.played()
    launch_s = background.divided(rules.launch_s).step_s / len(background.divided(rules.launch_s).launches)
    each_s = once.makespan_s / max(once.repeats, 1)
    events = len(once.end_s) / max(once.repeats, 1) + len(simulated) * each_s / launch_s
    least = enough_repeats(once.program, once.costs.rounds)
    run = part.played(max(least, min(REPEATS, int(_MOST / events))))
    both = collocate(run, background, rules, simulated)
    everywhere = tuple(sorted(set(chosen)))
    return replace(both, devices=everywhere, twins=part.twins, columns=part.columns, excerpt=part.label)
