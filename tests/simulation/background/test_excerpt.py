"""Background jobs beside a plan that is too long to be simulated whole (planning/background/excerpt.py)."""

from pathlib import Path

import pytest

from hocket.cli.plan.background import collocated_json
from hocket.cost.background.background import Background
from hocket.cost.contention import Collocation
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.background import excerpt
from hocket.planning.background.background_job import beside
from hocket.planning.load import LoadedPlan, opened
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.analytic.synthetic import chain

JOB = Background.even("job", 1, 2e-3)
GAPS = Collocation(beside=False)


def long_plan(tmp_path: Path, stages: int, replicas: int, microbatches: int) -> LoadedPlan:
    """A pipeline with flushes, on links that its replicas do not share."""
    profile = chain(stages, forward_s=1e-3, backward_s=2e-3, device_type="cpu-core")
    profile.save(tmp_path / "p.json")
    cluster = Cluster("many", (Level("net", stages * replicas, 1e11, 1e-6, shared=False),), "cpu-core", 4e9)
    groups = (tuple(range(s * replicas, (s + 1) * replicas)) for s in range(stages))
    parts = tuple(PlanStage((layer.name,), group) for layer, group in zip(profile.layers, groups, strict=True))
    plan = Plan("flush", profile.name, microbatches, 1, parts, cluster, profile="p.json", dtype=profile.dtype)
    return opened(plan, tmp_path)


def test_an_excerpt_is_as_idle_as_the_plan(tmp_path: Path) -> None:
    """The shortest excerpt is half idle, the plan hardly ever: the excerpt is lengthened, and labelled."""
    plan = long_plan(tmp_path, 2, 1, 5000)
    assert plan.excerpt == "2 of 5,000 microbatches"
    found = beside(plan, JOB, GAPS)
    bubble = plan.predicted.bubble_fraction
    assert all(before == pytest.approx(bubble / (1 + bubble), abs=0.011) for before, _ in found.idle.values())
    assert found.foreground_samples_per_s_alone == pytest.approx(plan.predicted.samples_per_s, rel=0.011)
    assert collocated_json(found)["excerpt"] == found.excerpt != plan.excerpt
    assert found.excerpt.endswith(" of 5,000 microbatches")


def test_one_column_stands_for_all(tmp_path: Path) -> None:
    """Devices of columns that are not simulated have the figures of their twins; they are not idle."""
    plan = long_plan(tmp_path, 2, 3, 3 * 2000)
    found = beside(plan, JOB, GAPS)
    assert found.columns == 3
    assert found.excerpt.endswith(" of 6,000 microbatches in 1 of 3 columns")
    assert found.devices == tuple(found.idle) == tuple(found.background_samples_per_s) == tuple(range(6))
    assert found.peak_memory_bytes.keys() == plan.predicted.peak_memory_bytes.keys()
    for stage in ((0, 1, 2), (3, 4, 5)):
        assert len({(found.idle[d], found.background_samples_per_s[d]) for d in stage}) == 1
    assert all(before < 0.02 for before, _ in found.idle.values())
    assert found.foreground_samples_per_s_alone == pytest.approx(plan.predicted.samples_per_s, rel=0.011)


def test_columns_differ_where_one_has_the_background_job(tmp_path: Path) -> None:
    """With the job on a single device, all columns are simulated."""
    found = beside(long_plan(tmp_path, 2, 3, 3 * 2000), JOB, GAPS, devices=(0,))
    assert (found.columns, found.devices, dict(found.twins)) == (1, (0,), {})


def test_a_plan_without_such_an_excerpt_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If every excerpt is clearly more idle than the plan, the error says so."""
    monkeypatch.setattr(excerpt, "_LONGEST", 64)
    with pytest.raises(InputError, match="the longest excerpt, 16 of 4,096 microbatches; expected an excerpt"):
        beside(long_plan(tmp_path, 4, 1, 4096), JOB)


def test_a_short_plan_is_simulated_whole(tmp_path: Path) -> None:
    """A plan that is short enough has no excerpt."""
    found = beside(long_plan(tmp_path, 4, 1, 8), JOB, GAPS)
    assert (found.excerpt, found.columns, dict(found.twins)) == ("", 1, {})
