"""Buckets and threads of the best plans of a search.

They are never slower than buckets of one size, near the optimum, and reported.
"""

from dataclasses import replace
from itertools import combinations, pairwise, product
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level
from hocket.hardware.overlap import OverlapModel, Rate
from hocket.planning.buckets.assign import FINALISTS, REACH, best_few, kept_by_buckets, rebucketed
from hocket.planning.buckets.lower_bound import least_used_s
from hocket.planning.buckets.options import _kept
from hocket.planning.buckets.threads import WORTH
from hocket.planning.burst.amplification import alone_s, amplification_of, device_s
from hocket.planning.burst.amplification_limit import Tolerance
from hocket.planning.load import LoadedPlan, problems_of
from hocket.planning.mesh.plan_model import search_sizes
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import predict_iteration
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.result import Evaluated
from hocket.planning.search.search import search
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.analytic.transformer import Transformer
from hocket.profiling.profile import ModelProfile
from hocket.program.passes.borders import StageCut
from tests.planning.helpers.overlaps import V100, models
from tests.planning.helpers.situations import clusters, profiles
from tests.tiers import examples

KNOWN = replace(V100, threads=(128, 512, 2048), own_threads=2048)
PLAIN = Level("server", 8, 6e9, 20e-6)
# Many layers whose last gradients, those of the first layers, are the largest: buckets of one size end late.
LAYERS = 40
MANY = chain(
    LAYERS,
    forward_s=1e-3,
    backward_s=2e-3,
    weights_bytes=np.linspace(1e7, 2e6, LAYERS).tolist(),
    microbatch_sizes=(1, 2),
    device_type="v100-16gb",
)


def cluster(level: Level = PLAIN, overlap: OverlapModel | None = None, **options: float) -> Cluster:
    return Cluster("one", (replace(level, overlap=overlap),), "v100-16gb", **options)


def plan_of(
    profile: ModelProfile,
    on: Cluster,
    stages: tuple[PlanStage, ...],
    strategy: str = "data_parallel",
    **options: object,
) -> Plan:
    values = {"batch_size": on.devices, "microbatch_size": 1, "profile_digest": profile.digest, **options}
    return Plan(strategy, profile.name, stages=stages, cluster=on, **values)  # type: ignore[arg-type]


def replicated(profile: ModelProfile, on: Cluster, **options: object) -> Plan:
    """The whole model on every device, in one bucket."""
    names = tuple(layer.name for layer in profile.layers)
    return plan_of(profile, on, (PlanStage(names, tuple(range(on.devices))),), **options)


@examples(25)
@given(
    profile=profiles(most=5),
    on=clusters(),
    batch_size=st.integers(1, 6),
    memory=st.sampled_from([None, 2e7, 1e7]),
    known=st.none() | models(),
)
def test_never_slower_and_within_memory(
    profile: ModelProfile, on: Cluster, batch_size: int, memory: float | None, known: OverlapModel | None
) -> None:
    """Each candidate is at least as fast, matches its prediction, and still fits."""
    on = replace(on, memory_bytes=memory)
    if known is not None:
        levels = (replace(on.levels[0], overlap=replace(known, threads=(1, 16, 256))), *on.levels[1:])
        on = replace(on, levels=levels)
    names = ("data_parallel", "flush", "two_bw", "burst_parallel")
    found = search(profile, on, PlanRequest(batch_size, strategies=names, buckets="default"))
    before, after = found.candidates, best_few(found)
    assert after == best_few(found)
    changed = 0
    for old, new in zip(before, after, strict=True):
        if replace(new, default_buckets=False) == old:
            continue
        changed += 1
        assert new.buckets
        assert new.iteration_s * (1 + WORTH) <= old.iteration_s * (1 + 1e-12)
        assert new.iteration_s == predict_iteration(new.plan, profile).iteration_s
        assert Plan.from_yaml(new.plan.to_yaml()) == new.plan
        for mine, theirs in zip(new.plan.stages, old.plan.stages, strict=True):
            assert replace(mine, buckets=(), threads=()) == replace(theirs, buckets=(), threads=())
        opened = LoadedPlan(new.plan, profile)
        assert not problems_of(opened, opened.program)
    sums = {one.strategy for one in before}
    assert changed <= FINALISTS + len(sums)
    assert not any(new.buckets and new.default_buckets for new in after)


@pytest.mark.parametrize("overlap", [None, KNOWN])
@pytest.mark.parametrize("rate", [6e9, 5e10])
@pytest.mark.thinned(most=1)
def test_near_the_best_of_all(overlap: OverlapModel | None, rate: float) -> None:
    """Compare with all buckets and all numbers of threads, for five layers.

    One of the layers has no weights. Every combination is simulated.
    """
    sizes = [3e7, 0.0, 2e6, 4e7, 1e7]
    profile = chain(
        5, forward_s=2e-3, backward_s=[5e-3, 1e-3, 4e-3, 6e-3, 2e-3], weights_bytes=sizes, device_type="v100-16gb"
    )
    if overlap is not None:
        overlap = overlap.scaled(rate / 6e9, 1.0)
    on = cluster(replace(PLAIN, bandwidth_bytes_per_s=rate), overlap)
    plan = replicated(profile, on)
    names = plan.stages[0].layers[::-1]
    least_s = inf
    for count in range(5):
        for inner in combinations(range(1, 5), count):
            ends = (0, *inner, 5)
            buckets = tuple(names[a:b] for a, b in pairwise(ends))
            for threads in product(KNOWN.threads, repeat=count + 1) if overlap else [()]:
                stage = replace(plan.stages[0], buckets=buckets, threads=threads)
                least_s = min(least_s, predict_iteration(replace(plan, stages=(stage,)), profile).iteration_s)
    found = rebucketed(plan, profile)
    assert found is not None
    assert found.plan.predicted is not None
    assert found.plan.predicted.iteration_s <= 1.005 * least_s
    assert least_s < 0.97 * predict_iteration(plan, profile).iteration_s
    assert len(found.plan.stages[0].threads) == (len(found.plan.stages[0].buckets) if overlap else 0)


def test_what_is_gained_is_said() -> None:
    """The candidate reports the gain and the number of buckets.

    Threads are reported only if they are known. `default` leaves all plans as they were.
    """
    options = {"strategies": ("data_parallel",), "shards": ("none",)}
    known, unknown = cluster(overlap=KNOWN), cluster()
    for on in (known, unknown):
        old, new = (search(MANY, on, PlanRequest(8, buckets=word, **options)).best for word in ("default", "auto"))
        assert not old.buckets
        (was,), (now,) = old.plan.stages, new.plan.stages
        gain = old.iteration_s / new.iteration_s - 1
        lanes = f" with {', '.join(map(str, now.threads))} threads" if on is known else ""
        assert bool(now.threads) == (on is known)
        said = f"buckets: {len(now.buckets)}{lanes} instead of {len(was.buckets)} of 25 MiB: {gain:.1%} quicker"
        assert new.buckets == said
        assert gain > 0.01


def test_what_is_best_only_with_other_buckets_is_found() -> None:
    """A plan that is best only with several buckets is found.

    With one bucket, which is summed after the backward, one device is faster than two; with more buckets two are
    faster.
    """
    profile = chain(4, forward_s=1e-3, backward_s=2e-3, device_type="v100-16gb")
    two = cluster(Level("server", 2, 1e9, 1e-6))
    options = {"strategies": ("data_parallel",), "microbatch_sizes": (1,), "shards": ("none",)}
    default, auto = (search(profile, two, PlanRequest(2, buckets=word, **options)).best for word in ("default", "auto"))
    assert [len(one.plan.stages[0].devices) for one in (default, auto)] == [1, 2]
    assert auto.iteration_s < 0.95 * default.iteration_s


def test_under_a_limit_of_amplification() -> None:
    """Amplification limits also hold for plans with other buckets.

    A limit that does not bind changes nothing, for strategies that keep devices or yield idle ones. With other
    buckets, amplification is computed again.
    """
    on = cluster(overlap=KNOWN)
    options = {"strategies": ("data_parallel", "burst_parallel"), "shards": ("none",)}
    free, found = (
        search(MANY, on, PlanRequest(8, amplification_limit=limit, **options)).candidates for limit in (None, 50.0)
    )
    assert {one.strategy for one in found} == {"data_parallel", "burst_parallel"}
    for one in found:
        assert one.buckets
        assert one.plan in [other.plan for other in free]
        assert one.amplification == pytest.approx(amplification_of(one.plan, MANY).planned, rel=1e-9)
    names = tuple(layer.name for layer in MANY.layers)
    stages = (PlanStage(names[:20], tuple(range(8))), PlanStage(names[20:], (0, 1, 2, 3)))
    plan = plan_of(MANY, on, stages, "burst_parallel", batch_size=8)
    better = rebucketed(plan, MANY)
    assert better is not None
    alone = alone_s((MANY,), on, 8)
    used_s = device_s(better.plan, MANY)
    for share, kept in ((1.001, True), (0.999, False)):
        limit = share * used_s / alone
        again = rebucketed(plan, MANY, Tolerance(limit, alone))
        assert (again is not None and again.plan == better.plan) == kept
        assert again is None or device_s(again.plan, MANY) <= limit * alone


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("name", ["data_parallel", "burst_parallel"])
@pytest.mark.thinned(most=1)
def test_what_keeps_a_limit_with_other_buckets_alone_is_found(name: str, tensor: int) -> None:
    """A plan that keeps the limit only with other buckets is found by `auto`.

    The limit is between the device-seconds with and without other buckets. `default` refuses the plan; `auto`
    offers it and reports the gain.
    """
    on, profile = cluster(overlap=KNOWN), replace(MANY, tensor=tensor)
    options = {"strategies": (name,), "shards": ("none",), "microbatch_sizes": (1,)}

    def offered(word: str, limit: float) -> Evaluated | None:
        found = search(profile, on, PlanRequest(8, buckets=word, amplification_limit=limit, **options))
        return next((one for one in found.candidates if len(one.plan.stages[0].devices) == 8 // tensor), None)

    before, after = (offered(word, 1e3) for word in ("default", "auto"))
    assert before is not None
    assert before.amplification is not None
    assert after is not None
    assert after.amplification is not None
    limit = (before.amplification + after.amplification) / 2
    assert after.amplification < 0.99 * before.amplification
    assert offered("default", limit) is None
    found = offered("auto", limit)
    assert found is not None
    assert found.buckets == after.buckets
    assert (found.plan, found.iteration_s, found.amplification) == (after.plan, after.iteration_s, after.amplification)
    assert offered("auto", 0.99 * after.amplification) is None


def test_buckets_are_looked_for_only_where_they_can_change_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets are not searched if they cannot bring a plan below the limit.

    That is, if the plan exceeds the limit even with the least possible time for sums, or if it sums nothing.
    """
    asked = list[Plan]()
    monkeypatch.setattr("hocket.planning.buckets.assign._quickest", lambda plan, *_: asked.append(plan))
    plan = replicated(MANY, cluster(overlap=KNOWN))
    plan = replace(plan, predicted=predict_iteration(plan, MANY))
    alone = alone_s((MANY,), plan.cluster, 8) / 2  # so that limits are above 1
    least = least_used_s(plan, MANY) / alone
    for limit, looked in ((0.999 * least, False), (1.001 * least, True)):
        kept_by_buckets(plan, MANY, Tolerance(limit, alone))
        assert bool(asked) == looked
    asked.clear()
    kept_by_buckets(replace(plan, stages=(replace(plan.stages[0], devices=(0,)),)), MANY, Tolerance(1e3, alone))
    assert not asked


@pytest.mark.slow
def test_however_it_is_asked() -> None:
    """A strategy's best plan is equally fast in a search of all strategies.

    Plans that keep 25 MiB buckets because they were not searched say so.
    """
    on = cluster(overlap=KNOWN)
    names = ("data_parallel", "burst_parallel", "interleaved", "flush")
    found = search(MANY, on, PlanRequest(8, strategies=names, shards=("none",))).candidates
    limit_s = found[0].iteration_s * (1 + REACH)
    summing = [one for one in found if any(len(stage.devices) > 1 for stage in one.plan.stages)]
    for name in {one.strategy for one in summing if one.iteration_s <= limit_s}:
        here = next(one for one in summing if one.strategy == name)
        alone = search(MANY, on, PlanRequest(8, strategies=(name,), shards=("none",)))
        assert here.iteration_s == pytest.approx(alone.best.iteration_s, rel=0.002), name
    assert any(one.default_buckets for one in summing)
    plain = search(MANY, on, PlanRequest(8, strategies=names, shards=("none",), buckets="default")).candidates
    assert not any(one.default_buckets for one in plain)


def test_threads_that_the_library_takes_are_not_told() -> None:
    """The library's default number of threads is not reported."""
    own = replace(KNOWN, threads=(KNOWN.own_threads,))
    found = rebucketed(replicated(MANY, cluster(overlap=own)), MANY)
    assert found is not None
    assert set(found.plan.stages[0].threads) == {KNOWN.own_threads}
    assert "threads" not in found.text
    assert found.text.startswith(f"buckets: {len(found.plan.stages[0].buckets)} instead of ")


def test_threads_that_gain_less_than_chance_are_not_taken() -> None:
    """A gain of a hundredth of a percent does not justify more threads."""
    most = KNOWN.alone.most_bytes_per_s
    rate = Rate(most, 1e-3 * most, 1.0)
    even = replace(KNOWN, taken=0.0, beside=rate, alone=rate, threads=(1, 4), own_threads=1)
    found = rebucketed(replicated(MANY, cluster(overlap=even)), MANY)
    assert found is not None
    assert set(found.plan.stages[0].threads) == {1}


def test_threads_of_a_processor() -> None:
    """Only numbers of threads that a plan for processors may have are chosen."""
    profile = replace(MANY, device_type="cpu-core")
    known = replace(KNOWN, threads=(2, 2048), own_threads=2)
    on = replace(cluster(overlap=known), device_type="cpu-core")
    found = rebucketed(replicated(profile, on), profile)
    assert found is not None
    assert set(found.plan.stages[0].threads) == {2}


def test_buckets_of_a_number_of_bytes() -> None:
    """Buckets have the requested size; invalid sizes are refused."""
    options = {"strategies": ("data_parallel",), "shards": ("none",)}
    found = search(MANY, cluster(), PlanRequest(8, buckets=1e6, **options)).best
    assert len(found.plan.stages[0].buckets) == LAYERS
    assert not found.buckets
    for wrong in ("automatic", 0.0, -1.0, inf):
        with pytest.raises(InputError, match="auto, default or a number of bytes"):
            search(MANY, cluster(), PlanRequest(8, buckets=wrong))


def test_stages_with_several_microbatches_and_replicas_that_run_bundles() -> None:
    """Each stage of a replicated pipeline gains by overlap with its last backward.

    Merged microbatches count with their full length.
    """
    names = tuple(layer.name for layer in MANY.layers)
    half = LAYERS // 2
    pipeline = (PlanStage(names[:half], (0, 1, 2, 3)), PlanStage(names[half:], (4, 5, 6, 7)))
    bundles = (PlanStage(names[:half], tuple(range(8))), PlanStage(names[half:], (0, 1, 2, 3)))
    for strategy, stages in (("flush", pipeline), ("burst_parallel", bundles)):
        plan = plan_of(MANY, cluster(overlap=KNOWN), stages, strategy, batch_size=32 if strategy == "flush" else 8)
        found = rebucketed(plan, MANY)
        assert found is not None
        assert " by stage with " in found.text
        assert all(len(stage.threads) == len(stage.buckets) > 1 for stage in found.plan.stages)


@pytest.mark.parametrize("shard", ["optimizer", "full"])
@pytest.mark.parametrize("overlap", [None, KNOWN])
def test_sums_that_replicas_divide(overlap: OverlapModel | None, shard: str) -> None:
    """Buckets of sharded sums are near the optimum for five layers.

    Threads stay the library's default.
    """
    sizes = [3e7, 0.0, 2e6, 4e7, 1e7]
    seconds = [5e-3, 1e-3, 4e-3, 6e-3, 2e-3]
    profile = chain(5, forward_s=2e-3, backward_s=seconds, weights_bytes=sizes, device_type="v100-16gb")
    on = cluster(replace(PLAIN, reduce_scatter=0.8), overlap)
    plan = replicated(profile, on, shard=shard)
    names = plan.stages[0].layers[::-1]
    every_s = []
    for count in range(5):
        for inner in combinations(range(1, 5), count):
            buckets = tuple(names[a:b] for a, b in pairwise((0, *inner, 5)))
            stage = replace(plan.stages[0], buckets=buckets)
            every_s.append(predict_iteration(replace(plan, stages=(stage,)), profile).iteration_s)
    found = rebucketed(plan, profile)
    assert found is not None
    assert found.predicted.iteration_s <= 1.005 * min(every_s)
    assert min(every_s) < 0.97 * predict_iteration(plan, profile).iteration_s
    assert not found.plan.stages[0].threads
    opened = LoadedPlan(found.plan, profile)
    assert not problems_of(opened, opened.program)


def test_where_nothing_can_be_chosen() -> None:
    """Plans without replicas, and units of one layer, have no choice of buckets."""
    on = cluster(overlap=KNOWN)
    names = tuple(layer.name for layer in MANY.layers)
    assert rebucketed(plan_of(MANY, on, (PlanStage(names, (0,)),)), MANY) is None
    units = tuple(PlanStage((name,), tuple(range(8))) for name in names)
    assert rebucketed(plan_of(MANY, on, units, "fully_sharded", shard="full"), MANY) is None


def test_cores_that_are_too_few() -> None:
    """Buckets are also found if sums use cores of the computation."""
    host = cluster(Level("server", 4, 2e9, 1e-5), host_cores=4.0, transfer_cores=0.25)
    found = rebucketed(replicated(MANY, host), MANY)
    assert found is not None
    assert not found.plan.stages[0].threads


@pytest.mark.parametrize(("cores", "speed"), [(None, 1.0), (5.0, 1.0), (4.5, 0.9), (4.0, 0.8), (2.0, 0.8)])
def test_the_speed_of_computation_beside_a_sum(cores: float | None, speed: float) -> None:
    """Four workers, and sums that take a quarter of a core each: five cores are enough, with fewer all become slower."""
    host = cluster(Level("server", 4, 2e9, 1e-5), host_cores=cores, transfer_cores=0.25)
    cut = StageCut((0,), (0, 1, 2, 3))
    assert _kept(host, (cut,), cut.devices) == pytest.approx(speed)


@pytest.mark.parametrize("shard", ["none", "optimizer"])
def test_by_sizes(shard: str) -> None:
    """The best plan of an analytic model gets the best buckets, even if sharded.

    Threads are chosen if they are known and sums are not sharded. With `default`, and without a gain, buckets have
    25 MiB.
    """
    model = Transformer("small", layers=12, hidden=1024, heads=16, sequence=512, vocabulary=1000)
    levels = (Level("server", 8, 25e9, 5e-6),)
    on = Cluster("servers", levels, "a100-80gb")
    known = replace(on, levels=(replace(levels[0], overlap=replace(KNOWN, threads=(512, 1024), own_threads=128)),))
    quick = replace(on, levels=(replace(levels[0], bandwidth_bytes_per_s=1e15, latency_s=0.0),))
    options = {"tensors": (1,), "strategies": ("data_parallel",), "shards": (shard,), "microbatch_sizes": (1,)}
    for where, word, has_buckets in (
        (known, "default", False),
        (quick, "auto", False),
        (on, "auto", True),
        (known, "auto", True),
    ):
        found = search_sizes(model, where, PlanRequest(8, buckets=word, **options))
        plan = found.plan(found.best, "there.json")
        assert plan.profile == "there.json"
        assert plan.predicted is not None
        assert plan.predicted == predict_iteration(plan, found.profile_of(found.best))
        assert bool(plan.stages[0].threads) == (where is known and has_buckets and shard == "none")
        assert set(plan.stages[0].threads) <= {512, 1024}
        assert bool(found.buckets_text) == has_buckets
        if has_buckets:
            gain = found.best.iteration_s / plan.predicted.iteration_s - 1
            assert gain > 0.002
            assert found.buckets_text.endswith(f"{gain:.1%} quicker")
    with pytest.raises(InputError, match="auto or default"):
        search_sizes(model, on, PlanRequest(8, buckets=1e6))
