"""Edges of settings: the last valid value is taken, and the first invalid one is refused with its place."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest

from hocket.cost.analytic.calibration import Calibration
from hocket.cost.background.background import Background, Launch
from hocket.cost.contention import Collocation
from hocket.errors import InputError
from hocket.planning.search.request import PlanRequest
from hocket.program.passes.swapping.settings import StageSwap, Swapping
from hocket.program.rule import Rule

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
]  # fmt: skip


@pytest.mark.parametrize(("make", "name", "valid", "invalid", "said"), CASES, ids=lambda value: str(value)[:40])
def test_edges(make: Callable[..., Any], name: str, valid: Any, invalid: Any, said: str) -> None:
    """The last valid value makes an object; the first invalid one an error that says the place, the value and the rule."""
    make(**{name: valid})
    with pytest.raises(InputError) as refused:
        make(**{name: invalid})
    assert said in str(refused.value)
