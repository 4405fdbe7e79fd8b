"""Comparison with baselines: a pipeline is not chosen by habit.

Small models inside one server are planned with data parallelism, and the gain is reported.
"""

from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest

from hocket.hardware import catalog
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.explain.baseline_comparison import ALONE, PIPELINE, PLAIN, SHARDED, of_profile, of_sizes
from hocket.planning.explain.bottlenecks import limits_of
from hocket.planning.load import LoadedPlan, problems_of
from hocket.planning.mesh.plan_model import search_sizes
from hocket.planning.mesh.search.search import search_meshes
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.result import TIE
from hocket.planning.search.search import search
from hocket.profiling.analytic.sizes import published
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.analytic.transformer import Transformer

SMALL = {
    "gpt2 of 124 million": Transformer("small", 12, 768, 12, 50257, 1024),
    "a tiny one": Transformer("tiny", 4, 256, 4, 8192, 256),
    "bert-large": published("bert-large"),
}
KINDS = [name for name in catalog.names() if "float16" in catalog.device_type(name).flops_per_s]


def server(kind: str, bandwidth_bytes_per_s: float = 250e9) -> Cluster:
    """Eight devices with fast links."""
    return Cluster("server", (Level("server", 8, bandwidth_bytes_per_s, 3e-6, shared=False),), kind)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "model"), list(zip(KINDS, cycle(SMALL), strict=False)))
@pytest.mark.thinned(most=3)
def test_small_models_in_one_server(kind: str, model: str) -> None:
    """Data parallelism wins on every device type of the catalogue.

    It is plain if the step may not be sharded. The additional time of the best pipeline is reported.
    """
    for options, winners in (({}, (PLAIN, SHARDED)), ({"shards": ("none",)}, (PLAIN,))):
        found = search_sizes(SMALL[model], server(kind), PlanRequest(256, **options))  # type: ignore[arg-type]
        assert found.best.mesh.strategy == "data_parallel"
        verdict = of_sizes(found)
        assert verdict.winner in winners
        assert found.best.mesh.sharded == (verdict.winner == SHARDED)
        assert verdict.loses > TIE
        start = f"{verdict.winner} wins: the best pipeline, {verdict.other}, takes {verdict.loses:.1%} more"
        assert verdict.text.startswith(start)


@pytest.mark.slow
@pytest.mark.parametrize(("batch_size", "bandwidth_bytes_per_s"), [(8, 1e9), (8, 20e9), (128, 250e9)])
@pytest.mark.thinned(most=1)
def test_a_pipeline_only_where_it_is_better(batch_size: int, bandwidth_bytes_per_s: float) -> None:
    """A pipeline wins by more than a tie, or because no other plan fits.

    This holds for any batch and links. The other plan is the best of its kind, as in a search of that kind alone.
    """
    found = search_sizes(SMALL["a tiny one"], server("a100-40gb", bandwidth_bytes_per_s), PlanRequest(batch_size))
    verdict = of_sizes(found)
    piped = found.best.mesh.depth > 1
    assert (verdict.winner == PIPELINE) == piped
    assert not piped or not verdict.other or verdict.loses > 0
    spaces = found.spaces(found.cluster, found.request)
    others = search_meshes(spaces, batch_size, only=lambda mesh: (mesh.depth > 1) != piped).found
    assert verdict.loses == pytest.approx(min(one.iteration_s for one in others) / found.best.iteration_s - 1, abs=TIE)


def test_one_kind_alone() -> None:
    """The reason is given if no strategy of the other kind was requested.

    If one was, it is compared.
    """
    for strategies, why in ((("flush",), "nothing else was considered"), (("flush", "data_parallel"), "")):
        found = search_sizes(SMALL["a tiny one"], server("a100-40gb"), PlanRequest(64, strategies=strategies))
        verdict = of_sizes(found)
        assert (verdict.winner == PIPELINE, verdict.why) == (len(strategies) == 1, why)


@pytest.mark.slow
def test_launches_are_charged() -> None:
    """Slow kernel launches cost a pipeline of small microbatches more."""
    kind = catalog.device_type("a100-40gb")
    losses = []
    for launch_s in (0.0, 5e-5):
        types = (replace(kind, name="own", launch_s=launch_s),)
        found = search_sizes(SMALL["a tiny one"], replace(server("own"), types=types), PlanRequest(64))
        spaces = list(found.spaces(found.cluster, replace(found.request, tensors=(1,))))
        best = [search_meshes(spaces, 64, only=lambda mesh, k=k: (mesh.depth > 1) == k).found[0] for k in (False, True)]  # type: ignore[misc]
        losses.append(best[1].iteration_s - best[0].iteration_s)
    assert losses[1] > losses[0]


def test_where_nothing_else_fits() -> None:
    """The missing memory of the other kind is reported."""
    options = {"tensors": (1,), "shards": ("none",)}
    large = search_sizes(published("gpt2-xl"), server("v100-16gb"), PlanRequest(64, **options))  # type: ignore[arg-type]
    verdict = of_sizes(large)
    assert verdict.winner == PIPELINE
    assert verdict.text.startswith("a pipeline wins: no plan without a pipeline, because p1 t1 d8")
    assert "on a device of 14.90 GiB" in verdict.text
    alone = search_sizes(SMALL["a tiny one"], Cluster("one", (Level("server", 1, 1e9),), "h100"), PlanRequest(64))
    assert (
        of_sizes(alone).text
        == "one device alone is quickest: no plan on several devices, because the cluster has one device"
    )


def test_of_profiles() -> None:
    """Fast links: data parallelism. Slow links and many weights: a pipeline.

    The additional time of the best plan without a pipeline is reported.
    """
    quick = Cluster("four", (Level("server", 4, 1e11, 1e-6),), "v100-16gb")
    light = chain(4, forward_s=1e-3, backward_s=2e-3, device_type="v100-16gb")
    found = search(light, quick, PlanRequest(32))
    verdict = of_profile(found)
    assert verdict.winner == PLAIN
    assert verdict.loses == pytest.approx(
        min(
            one.iteration_s
            for one in found.candidates
            if one.strategy != "waves" and len({s.devices for s in one.plan.stages}) > 1
        )
        / found.best.iteration_s
        - 1
    )
    slow = replace(quick, levels=(Level("server", 4, 1e9, 1e-6),))
    heavy = chain(4, forward_s=1e-3, backward_s=2e-3, weights_bytes=1e8, device_type="v100-16gb")
    verdict = of_profile(search(heavy, slow, PlanRequest(32)))
    assert verdict.winner == PIPELINE
    assert verdict.text.startswith("a pipeline wins: the best plan without a pipeline, data_parallel ")
    only = search(heavy, slow, PlanRequest(32, strategies=["flush"]))
    assert of_profile(only).text == "a pipeline: nothing else was considered"
    waved = search(light, quick, PlanRequest(32, strategies=["waves"]))
    assert of_profile(waved).text == "model parallelism in waves: nothing else was considered"


def test_one_device_of_several() -> None:
    """One of two devices is fastest with very slow links, and this is reported."""
    slow = Cluster("two", (Level("server", 2, 1e7, 1e-3),), "v100-16gb")
    heavy = chain(4, forward_s=1e-3, backward_s=2e-3, weights_bytes=1e8, activation_bytes=1e7, device_type="v100-16gb")
    found = search(heavy, slow, PlanRequest(4, strategies=("data_parallel", "flush")))
    assert (found.best.strategy, found.best.config) == ("data_parallel", "1")
    verdict = of_profile(replace(found, candidates=(found.best,)))
    assert verdict.winner == ALONE
    assert verdict.text == "one device alone: nothing else was considered"
    single = search(heavy, replace(slow, levels=(Level("server", 1, 1e7, 1e-3),)), PlanRequest(4))
    assert (
        of_profile(single).text
        == "one device alone is quickest: no plan on several devices, because the cluster has one device"
    )
    second = search(heavy, slow, PlanRequest(4, strategies=("flush",))).best
    verdict = of_profile(replace(found, candidates=(found.best, second)))
    more = second.iteration_s / found.best.iteration_s - 1
    start = f"one device alone is quickest: the best plan on several devices, {second.label}, takes {more:.1%} more"
    assert verdict.text == start


@pytest.mark.slow
def test_replicas_that_share_the_step() -> None:
    """With few samples, replicas that shard the step win where they may.

    This holds for an analytic model and for a profile.
    """
    found = search_sizes(SMALL["bert-large"], server("a100-40gb"), PlanRequest(16))
    verdict = of_sizes(found)
    assert str(found.best.mesh) == "p1 t1 d8 z1 b2"
    assert verdict.text.startswith(f"sharded data parallelism wins: the best pipeline, {verdict.other}, takes ")
    plain = search_sizes(SMALL["bert-large"], server("a100-40gb"), PlanRequest(16, shards=("none",)))
    assert plain.best.iteration_s > found.best.iteration_s * (1 + TIE)
    assert SHARDED not in of_sizes(plain).text
    profiled = chain(4, forward_s=1e-3, backward_s=2e-3, weights_bytes=1e6, device_type="v100-16gb")
    profiled = replace(profiled, layers=tuple(replace(layer, step_s=2e-3) for layer in profiled.layers))
    links = Cluster("quick", (Level("server", 4, 1e12, 1e-6),), "v100-16gb")
    names = ["data_parallel", "flush"]
    together = search(profiled, links, PlanRequest(4, strategies=names))
    assert (together.best.label, together.best.plan.shard) == ("data_parallel 4 shard=optimizer b1", "optimizer")
    told = of_profile(together).text
    assert told.startswith("sharded data parallelism wins: the best pipeline, flush ")
    whole = search(profiled, links, PlanRequest(4, strategies=names, shards=("none",)))
    assert of_profile(whole).winner == PLAIN
    assert whole.best.iteration_s > together.best.iteration_s * 1.3


@pytest.mark.slow
def test_replicas_that_divide_everything() -> None:
    """Full sharding wins if whole weights leave room for a single sample only.

    The plan is proved.
    """
    found = search_sizes(published("llama-2-7b"), server("a100-80gb"), PlanRequest(16))
    assert str(found.best.mesh) == "p1 t1 d8 z3 b2"
    verdict = of_sizes(found)
    assert verdict.text.startswith(f"sharded data parallelism wins: the best pipeline, {verdict.other}, takes ")
    plan = found.plan(found.best, "p.json")
    assert (plan.strategy, plan.shard, len(plan.stages)) == ("fully_sharded", "full", 34)
    assert plan.predicted is not None
    assert plan.predicted.iteration_s == pytest.approx(found.best.iteration_s, rel=1e-9)
    opened = LoadedPlan(plan, found.profile_of(found.best))
    assert problems_of(opened, opened.program) == ()
    less = search_sizes(published("llama-2-7b"), server("a100-80gb"), PlanRequest(16, shards=("none", "optimizer")))
    assert less.best.iteration_s > found.best.iteration_s * (1 + TIE)
    shares = limits_of(found, found.best).shares()
    assert sum(shares.values()) == pytest.approx(1)


@pytest.mark.slow
def test_the_best_of_the_other_kind_is_not_behind_the_runner_up() -> None:
    """A common search and a search of pipelines alone give the same best pipeline."""
    servers = Path(__file__).resolve().parents[3] / "examples" / "clusters" / "a100-servers.yaml"
    found = search_sizes(published("gpt2-xl"), Cluster.read(servers), PlanRequest(256, tensors=(1,)))
    verdict = of_sizes(found)
    piped = found.best.mesh.depth > 1
    others = [one.iteration_s for one in found.candidates if (one.mesh.depth > 1) != piped]
    assert others
    assert verdict.loses <= min(others) / found.best.iteration_s - 1
