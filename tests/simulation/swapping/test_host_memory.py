"""Host memory and bytes in transit, over the time of a run."""

import pytest

from hocket.cost.sizes import PlanSizes
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.predict.predict import host_course_of, played
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.analytic.synthetic import chain
from hocket.program.instruction import SWAPS
from hocket.program.memory_bound.footprint import footprints

MODEL = chain(4, weights_bytes=100e6, activation_bytes=2e6, microbatch_sizes=(1,), device_type="v100-16gb")
ROOM = Cluster("one", (Level("server", 2, 10e9),), "v100-16gb", memory_bytes=5e8, host_memory_bytes=9e9)


def test_hosts_and_what_moves() -> None:
    """A run ends with its initial host memory and without bytes in transit.

    Host memory never exceeds the proven bound. Bytes in transit reach at least the largest swapped value.
    """
    best = search(MODEL, ROOM, PlanRequest(4)).best
    assert best.plan.swap is not None
    found, outcome = host_course_of(best.plan, MODEL), played(best.plan, MODEL)
    assert found is not None
    proved = footprints(outcome.program, PlanSizes(outcome.costs, outcome.program), host=True)
    for device in (0, 1):
        series = found.host[device]
        assert [second for second, _ in series] == sorted(second for second, _ in series)
        assert series[-1][1] == pytest.approx(series[0][1])
        assert max(size for _, size in series) <= proved[device].bytes * (1 + 1e-9)
        assert found.moving[device][-1][1] == pytest.approx(0.0, abs=1.0)
        largest = max(
            PlanSizes(outcome.costs, outcome.program).value(value, device)
            for _, i in outcome.program.instructions()
            if i.kind in SWAPS and i.device == device
            for value in i.reads
        )
        assert max(size for _, size in found.moving[device]) >= largest


def test_what_does_not_swap_has_none() -> None:
    """A plan without swaps has no host memory to draw."""
    plan = search(MODEL, Cluster("one", (Level("server", 2, 10e9),), "v100-16gb"), PlanRequest(4)).best.plan
    assert host_course_of(plan, MODEL) is None
