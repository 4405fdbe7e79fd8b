"""Edges of settings: the last valid value is taken, and the first invalid one is refused with its place."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest

from hocket.cost.analytic.calibration import Calibration
from hocket.cost.background.background import Background, Launch
from hocket.cost.contention import Collocation
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.feedback import RunFeedback
from hocket.planning.search.request import PlanRequest
from hocket.profiling.analytic.synthetic import chain
from hocket.program.passes.swapping.settings import StageSwap, Swapping
from hocket.program.rule import Rule
from hocket.strategies.base.search_space import SearchSpace
from hocket.strategies.burst.constraints import BurstLimits
from hocket.strategies.burst.planner import DeviceCounts
from hocket.strategies.pipedream_partition.memory import MemoryRule

PROFILE = chain(3, device_type="v100-16gb")
CLUSTER = Cluster("four", (Level("server", 4, 1e9),), "v100-16gb")
LEAST = 5e-324
"""The smallest number above 0."""
JUST_ABOVE, JUST_BELOW = 1.0000000000000002, 0.9999999999999999


def background(**more: Any) -> Background:
    """A job of one launch."""
    return Background("job", **{"samples": 1, "launches": (Launch(1.0),)} | more)


def swapping(**more: Any) -> Swapping:
    """Settings that are valid without a limit."""
    return Swapping("task", **more)


def calibration(**more: Any) -> Calibration:
    """Factors of a device type."""
    return Calibration("v100-16gb", **{"forward": {}, "backward": {}} | more)


def counts(**more: Any) -> tuple[int, ...]:
    """Numbers of devices for eight samples on four devices."""
    return DeviceCounts(**more).of(CLUSTER, 8)


def space(**more: Any) -> SearchSpace:
    """A search for eight samples."""
    return SearchSpace(PROFILE, CLUSTER, **{"batch_size": 8} | more)


def plan(**more: Any) -> Plan:
    """A plan on one of four devices."""
    given = {"batch_size": 8, "microbatch_size": 1, "stages": (PlanStage(("layer0",), (0,)),)} | more
    return Plan("data_parallel", "chain", cluster=CLUSTER, **given)


def stage(**more: Any) -> Plan:
    """A plan with such a stage."""
    return plan(stages=(PlanStage(**{"layers": ("layer0",), "devices": (0,)} | more),))


def feedback(**more: Any) -> RunFeedback:
    """Feedback of a run."""
    given = {"slowdown": 1.0, "growth": 1.0} | more
    return RunFeedback("chain", "p", "c", "flush", 1, 1.0, 1.0, {}, {}, **given)


CASES: list[tuple[Callable[..., Any], str, Any, Any, str]] = [
    (Collocation, "collective_slowdown", 1.0, JUST_BELOW, "collective_slowdown: found 0.9999999999999999; expected >= 1"),
    (Collocation, "compute_slowdown", 1.0, nan, "compute_slowdown: found nan; expected >= 1"),
    (Collocation, "slowdown_limit", 1.0, JUST_BELOW, "slowdown_limit: found 0.9999999999999999; expected >= 1"),
    (Collocation, "outstanding", 1, 0, "outstanding: found 0; expected at least 1"),
    (Collocation, "launch_s", LEAST, 0.0, "launch_s: found 0.0; expected seconds > 0"),
    (Collocation, "least_share", LEAST, 0.0, "least_share: found 0.0; expected more than 0"),
    (Collocation, "least_share", 1.0, JUST_ABOVE, "least_share: found 1.0000000000000002; expected more than 0, at most 1"),
    (background, "samples", LEAST, 0, "background job job: samples: found 0; expected samples"),
    (background, "launches", (Launch(LEAST),), (Launch(0.0),), "launches: found 0 s; expected at least one"),
    (background, "launches", (Launch(1.0),), (), "launches: found none; expected at least one"),
    (background, "launches", (Launch(1.0, 1.0),), (Launch(1.0, JUST_ABOVE),), "demand of a launch: found 1; expected"),
    (background, "launches", (Launch(1.0, LEAST),), (Launch(1.0, 0.0),), "demand of a launch: found 0; expected"),
    (StageSwap, "weights_bytes", 0.0, -LEAST, "weights_bytes: found -5e-324; expected bytes >= 0"),
    (StageSwap, "stash_bytes", 1.7e308, inf, "stash_bytes: found inf; expected bytes >= 0"),
    (StageSwap, "gradients_bytes", (0.0, 1.0), (0.0, -1.0), "gradients_bytes: found -1.0; expected bytes >= 0"),
    (swapping, "device_bytes", LEAST, 0.0, "device_bytes: found 0.0; expected > 0"),
    (swapping, "device_bytes", (1.0, LEAST), (1.0, 0.0), "device_bytes: found 0.0; expected > 0"),
    (swapping, "host_bytes", LEAST, -1.0, "host_bytes: found -1.0; expected > 0"),
    (swapping, "prefetch", 0, -1, "prefetch: found -1; expected >= 0 operations"),
    (calibration, "step", 0.0, -LEAST, "step: found -5e-324; expected a factor from 0"),
    (calibration, "step", 1e6, 1000000.0000000001, "step: found 1000000.0000000001; expected a factor from 0 to 1e"),
    (calibration, "forward", {"launch": 1e6}, {"launch": 2e6}, "forward.launch: found 2000000.0; expected"),
    (calibration, "backward", {"launch": 1.0}, {"lunch": 1.0}, "backward: found 'lunch'; expected one of"),
    (calibration, "format", "hocket-calibration-1", "hocket-calibration-2", "format: found 'hocket-calibration-2'"),
    (PlanRequest, "batch_size", 1, 0, "batch_size: found 0; expected >= 1"),
    (lambda **more: PlanRequest(1, **more), "buckets", LEAST, 0.0, "buckets: found 0.0; expected auto, default"),
    (lambda **more: PlanRequest(1, **more), "buckets", "default", "defaults", "buckets: found 'defaults'"),
    (lambda **more: PlanRequest(1, **more), "buckets", 1e308, inf, "buckets: found inf; expected auto, default"),
    (lambda **more: PlanRequest(1, **more), "swap", "lru", "task", "swap: found 'task'; expected one of next_use, lru"),
    (lambda **more: PlanRequest(1, **more), "shards", ("full",), ("fully",), "shard: found 'fully'; expected one of"),
    (lambda **more: PlanRequest(1, **more), "recomputes", ("none",), ("some",), "recompute: found 'some'; expected"),
    (lambda batch: Rule("sync", batch, (0,)), "batch", (1,), (0,), "rule: found batch (0,), delay (0,); expected batch >= 1"),
    (lambda batch: Rule("sync", batch, (0,)), "batch", (1,), (1, 1), "rule: found 2 batches, 1 delays; expected one batch"),
    (lambda delay: Rule("stashed", (1,), delay), "delay", (0,), (-1,), "rule: found batch (1,), delay (-1,); expected"),
    (lambda kind: Rule(kind, (1,), (0,)), "kind", "naive", "naif", "rule: found 'naif'; expected one of sync, stashed"),
    (BurstLimits, "amplification_limit", 1.0, JUST_BELOW, "amplification_limit: found 0.9999999999999999; expected >= 1"),
    (BurstLimits, "whole_limit", 1.0, 0.5, "whole_limit: found 0.5; expected >= 1"),
    (BurstLimits, "memory_bytes", LEAST, 0.0, "memory_bytes: found 0.0; expected > 0"),
    (counts, "least", 4, 5, "least: found 5; expected 1 to 4"),
    (counts, "least", 1, 0, "least: found 0; expected 1 to 4"),
    (counts, "counts", (1, 4), (1, 5), "counts: found 5; expected 1 to 4: there are 4 devices and 8 samples"),
    (counts, "only", {0: 1}, {0: 0}, "only: found 0; expected 1 to 4: there are 4 devices and 8 samples"),
    (MemoryRule, "weight_versions", 1, 0, "weight_versions: found 0; expected >= 1"),
    (space, "batch_size", 1, 0, "batch_size: found 0; expected >= 1"),
    (space, "microbatch_sizes", (1, 8), (1, 9), "microbatch_sizes: found 9; expected a number from 1 to 8"),
    (space, "microbatch_sizes", (1,), (0,), "microbatch_sizes: found 0; expected a number from 1 to 8"),
    (plan, "batch_size", 2, 0, "batch_size: found 0; expected >= 1"),
    (plan, "microbatch_size", 8, 9, "microbatch_size: found 9; expected a number from 1 to 8"),
    (plan, "microbatch_size", 1, 0, "microbatch_size: found 0; expected a number from 1 to 8"),
    (plan, "tensor", 1, 0, "tensor: found 0; expected >= 1"),
    (plan, "slices", False, True, "slices: found true, with tensor: 1; expected false"),
    (plan, "shard", "optimizer", "optimiser", "shard: found 'optimiser'; expected one of none, optimizer, full"),
    (plan, "stages", (PlanStage(("layer0",), (0,)),), (), "stages: found none; expected at least one stage"),
    (stage, "devices", (0, 3), (0, 4), "stages.0.devices: found device 4; expected 0 to 3, the cluster's devices"),
    (stage, "devices", (0,), (0, 0), "stages.0.devices: found [0, 0]; expected at least one device, each once"),
    (stage, "devices", (0,), (-1,), "stages.0.devices: found device -1; expected 0 to 3"),
    (stage, "threads", (4096,), (4097,), "stages.0.threads: found [4097]; expected numbers from 1 to 4096"),
    (stage, "threads", (1,), (0,), "stages.0.threads: found [0]; expected numbers from 1 to 4096"),
    (stage, "threads", (1,), (1, 1), "stages.0.threads: found 2 numbers; expected 1, one for each bucket"),
    (stage, "buckets", (("layer0",),), (("layer1",),), "stages.0.buckets: found 'layer0' missing, unknown or twice"),
    (feedback, "slowdown", 256.0, 256.1, "slowdown: found 256.1; expected 0.00390625 to 256"),
    (feedback, "slowdown", 0.00390625, 0.0039, "slowdown: found 0.0039; expected 0.00390625 to 256"),
    (feedback, "growth", 1.0, JUST_BELOW, "growth: found 0.9999999999999999; expected 1 to 256"),
]  # fmt: skip


def words(value: Any) -> str:
    """A value in a test's name, which is the same in every process."""
    return getattr(value, "__name__", str(value))[:40]


@pytest.mark.parametrize(("make", "name", "valid", "invalid", "said"), CASES, ids=words)
def test_edges(make: Callable[..., Any], name: str, valid: Any, invalid: Any, said: str) -> None:
    """The last valid value makes an object; the first invalid one an error that says the place, the value and the rule."""
    make(**{name: valid})
    with pytest.raises(InputError) as refused:
        make(**{name: invalid})
    assert said in str(refused.value)
