"""Figures of a long plan equal those of a whole simulation."""

from dataclasses import replace

import pytest

from hocket.hardware.cluster import Cluster, Level
from hocket.planning.load import LoadedPlan
from hocket.planning.mesh.plan_model import search_sizes
from hocket.planning.mesh.search.simulated import simulated
from hocket.planning.predict.predict import predict
from hocket.planning.predict.whole_batch import excerpt_text
from hocket.planning.search.request import PlanRequest
from hocket.program.trace.compare import compare
from tests.planning.mesh.test_layout import GPT

SERVERS = Cluster(
    "servers", (Level("server", 4, 300e9, 3e-6, False), Level("cluster", 4, 20e9, 5e-6, False)), "a100-80gb"
)


def long_plan(strategy: str, tensor: int, shard: str, depth: int) -> LoadedPlan:
    """A plan of several columns with many microbatches.

    It is small enough to be simulated whole.
    """
    found = search_sizes(
        GPT,
        SERVERS,
        PlanRequest(256, tensors=(tensor,), microbatch_sizes=(1,), strategies=(strategy,), shards=(shard,)),
    )
    layout_space = found.best.space
    mesh = next(one for one in layout_space.meshes(256) if (one.strategy, one.depth) == (strategy, depth))
    one = simulated(layout_space, mesh)
    return LoadedPlan(found.plan(one), found.profile_of(one))


@pytest.mark.parametrize(
    ("strategy", "tensor", "shard", "depth", "most", "excerpt"),
    [
        ("flush", 1, "none", 2, 255, "16 of 256 microbatches"),
        ("flush", 2, "optimizer", 2, 4, "4 of 256 microbatches in 2 of 4 columns"),
        ("interleaved", 1, "optimizer", 2, 4, "8 of 256 microbatches in 2 of 8 columns"),
        ("two_bw", 1, "none", 4, 4, "16 of 256 microbatches in 2 of 4 columns"),
    ],
)
@pytest.mark.thinned(most=2)
def test_figures_of_an_iteration_are_those_of_the_whole(
    strategy: str, tensor: int, shard: str, depth: int, most: int, excerpt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time, utilization, bytes by link and overlap gain equal a whole simulation."""
    opened = long_plan(strategy, tensor, shard, depth)
    _, whole = predict(opened.plan, opened.profile)
    monkeypatch.setattr("hocket.planning.load.MAX_FORWARDS", most)
    cut = LoadedPlan(opened.plan, opened.profile)
    trace, found = cut.simulate()
    assert (cut.excerpt, trace.meta["excerpt"]) == (excerpt, excerpt)
    for name in ("iteration_s", "samples_per_s", "bubble_fraction", "group_bytes"):
        assert getattr(found, name) == pytest.approx(getattr(whole, name), rel=1e-9), name
    for name in ("utilization", "peak_memory_bytes", "sent_bytes", "sent_bytes_between"):
        assert getattr(found, name) == pytest.approx(getattr(whole, name), rel=1e-9), name
    assert (found.weight_versions, found.stashes) == (whole.weight_versions, whole.stashes)
    assert found.overlap is not None
    assert whole.overlap is not None
    assert found.overlap.batch == whole.overlap.batch
    assert found.overlap.apart_iteration_s == pytest.approx(whole.overlap.apart_iteration_s, rel=1e-9)
    ours, theirs = ([d.beside.seconds for d in one.overlap.devices] for one in (found, whole) if one.overlap)
    assert ours == pytest.approx(theirs, rel=1e-9)


def test_an_excerpt_beside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a comparison with a run, an excerpt's update is that of the whole batch."""
    opened = long_plan("flush", 1, "none", 2)
    real, _ = predict(opened.plan, opened.profile)
    monkeypatch.setattr("hocket.planning.load.MAX_FORWARDS", 255)
    trace, summary = LoadedPlan(opened.plan, opened.profile).simulate()
    row = compare(trace, real).update
    assert row.predicted == summary.iteration_s
    assert row.relative_error == pytest.approx(0, abs=1e-9)
    for wrong in (True, "2", -1.0, float("inf")):  # traces are files
        odd = replace(trace, meta={**trace.meta, "whole_iteration_s": wrong})
        assert compare(odd, real).update.predicted < summary.iteration_s / 2


def test_a_plan_that_is_shown_whole() -> None:
    """A short plan has no excerpt, and its trace mentions none."""
    opened = long_plan("flush", 1, "none", 2)
    trace, _ = opened.simulate()
    assert opened.excerpt == excerpt_text(opened.plan, opened.plan) == ""
    assert not {"excerpt", "whole_iteration_s"} & trace.meta.keys()
