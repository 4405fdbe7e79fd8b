"""Predictions of plans that load ahead."""

from dataclasses import replace

import pytest

from hocket.cost.sizes import PlanSizes
from hocket.errors import InputError, RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.planned_run import PlannedRun
from hocket.planning.predict.predict import predict, predict_iteration
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.profile import ModelProfile
from hocket.program.instruction import COMPUTE, LOAD, Kind
from hocket.program.memory_bound.footprint import footprints

CLUSTER = Cluster("two", (Level("local", 2, 1e12),), "cpu-core", memory_bytes=1e9)


def profile(load_s: float) -> ModelProfile:
    """Two layers of 0.5 s and 1 s for a sample, which takes so long to load."""
    made = chain(2, forward_s=0.5, backward_s=1.0, device_type="cpu-core")
    return replace(made, load_s=tuple(load_s * size for size in made.microbatch_sizes))


def plan(prefetch: int, loaders: int = 0, stages: int = 1, batch: int = 4) -> Plan:
    """Microbatches of one sample, on one device or two."""
    layers = ("layer0", "layer1")
    names = tuple(layer.name for layer in profile(0).layers)
    assert len(names) == len(layers)
    parts = (PlanStage(names, (0,)),) if stages == 1 else tuple(PlanStage((n,), (k,)) for k, n in enumerate(names))
    made = Plan("flush", "chain", batch, 1, parts, CLUSTER)
    return replace(made, prefetch=prefetch, loaders=loaders)


@pytest.mark.parametrize(
    ("load_s", "prefetch", "loaders", "microbatch_s"),
    [
        (2.0, 0, 0, 5.0),  # computation waits for every load
        (2.0, 1, 0, 3.0),  # loads are hidden
        (5.0, 1, 0, 5.0),  # the lane of loads is the slower one
        (5.0, 9, 0, 5.0),  # which loading further ahead does not change
        (5.0, 1, 2, 3.0),  # two processes read two microbatches at the same time
        (8.0, 2, 2, 4.0),
    ],
)
def test_an_iteration_takes_what_its_slower_lane_takes(load_s, prefetch, loaders, microbatch_s) -> None:
    """Of 3 s of computation and a load, for each of four microbatches; the optimizer's step takes no time here."""
    found = predict_iteration(plan(prefetch, loaders), profile(load_s))
    assert found.iteration_s == pytest.approx(4 * microbatch_s, rel=1e-6)


def test_long_batches_are_extrapolated_alike() -> None:
    """A batch too long to simulate takes as long for each microbatch as a short one, once loads run ahead."""
    for load_s, microbatch_s in ((2.0, 3.0), (5.0, 5.0)):
        found = predict_iteration(plan(2, batch=3 * 2**13), profile(load_s))
        assert found.iteration_s == pytest.approx(3 * 2**13 * microbatch_s, rel=1e-3)


def test_a_trace_shows_the_lane_of_loads() -> None:
    """Loads overlap with computation there, in order, and memory of inputs that wait is within the proved bound."""
    trace, summary = predict(plan(2, stages=2), profile(2.0))
    loads = [event for event in trace.events if event.kind is Kind.LOAD]
    assert {event.lane for event in loads} == {LOAD}
    own = sorted((e for e in loads if e.device == 0), key=lambda e: e.start_s)
    assert [e.index for e in own] == sorted(e.index for e in own)
    compute = [e for e in trace.events if e.device == 0 and e.lane == COMPUTE]
    assert any(a.start_s < b.end_s and b.start_s < a.end_s for a in own for b in compute)
    run = PlannedRun.of(plan(2, stages=2), profile(2.0))
    proved = footprints(run.program, PlanSizes(run.costs, run.program))
    for device, found in summary.peak_memory_bytes.items():
        assert found <= proved[device].bytes * (1 + 1e-9)
    assert summary.peak_memory_bytes[0] > predict(plan(0, stages=2), profile(2.0))[1].peak_memory_bytes[0]


def test_the_keys_of_a_plan_go_round() -> None:
    """They are written where they are not 0, and checked."""
    assert Plan.from_yaml(plan(2, 3).to_yaml()) == plan(2, 3)
    assert "prefetch" not in plan(0).to_yaml()
    assert "loaders" not in plan(0).to_yaml()
    with pytest.raises(InputError, match="prefetch: found -1"):
        plan(-1)


def test_a_search_plans_with_loads_ahead() -> None:
    """Every plan has them, and the best is faster than without; a swap policy beside them is refused."""
    found = {n: search(profile(2.0), CLUSTER, PlanRequest(4, prefetch=n, loaders=n)).best for n in (0, 2)}
    assert (found[2].plan.prefetch, found[2].plan.loaders) == (2, 2)
    assert found[2].iteration_s < 0.7 * found[0].iteration_s
    with pytest.raises(RefusedError, match="prefetch with swap"):
        PlanRequest(4, prefetch=1, swap="lru")
    with pytest.raises(InputError, match="an analytic model has no data"):
        PlanRequest(4, loaders=1).check_for_model()
