"""The search is deterministic, and no candidate beats its result."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError, RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.load import LoadedPlan, problems_of
from hocket.planning.plan import Plan
from hocket.planning.predict.predict import predict_choice, predict_iteration, proven_peaks
from hocket.planning.predict.update_semantics import synchronous_strategies
from hocket.planning.search.make_plan import make_plan
from hocket.planning.search.profiled_candidates import SIMULATED_PER_STRATEGY
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.result import TIE, Evaluated, Search
from hocket.planning.search.search import search
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.profile import ModelProfile
from hocket.program.instruction import Kind
from hocket.program.order import waves
from hocket.strategies.base.search_space import MAX_FORWARDS, Candidate, SearchSpace, shared
from hocket.strategies.base.strategy import members, searched, strategy
from hocket.util.schema import as_data
from tests.planning.helpers.situations import clusters, profiles
from tests.tiers import examples

CLUSTER = Cluster("four", (Level("server", 4, 1e9, 1e-5),), "cpu-core")
PROFILE = chain(8, forward_s=[0.1, 0.2, 0.3, 0.1, 0.2, 0.1, 0.2, 0.3], device_type="cpu-core")
PIPELINES = ("data_parallel", "flush", "gpipe", "two_bw")


def ticks() -> float:
    """A clock that stands still."""
    return 0.0


def fastest(found: Search) -> Evaluated:
    """The fastest candidate; the best may be simpler, and slower within the tolerance."""
    return min(found.candidates, key=lambda candidate: candidate.iteration_s)


def every(space: SearchSpace, names: Iterable[str]) -> list[tuple[float, str, Candidate]]:
    """All candidates that fit, simulated without bounds."""
    found = []
    capacity = [space.cluster.capacity_bytes(d) for d in range(space.cluster.devices)]
    for name in names:
        for one in strategy(name).choices(space):
            plain = (one, *one.thriftier)
            for choice in (*plain, *(less for each in plain if (less := shared(each)) is not None)):
                try:
                    predicted = predict_choice(space, name, choice)
                except RefusedError:
                    continue
                if all(size <= capacity[d] for d, size in predicted.peak_memory_bytes.items()) and all(
                    size <= capacity[d] for d, size in proven_peaks(space, name, choice).items()
                ):
                    found.append((predicted.iteration_s, name, choice))
    return found


@pytest.mark.slow
@examples(10)
@given(
    profile=profiles(most=5),
    cluster=clusters(),
    batch_size=st.integers(1, 6),
    memory=st.sampled_from([None, 2e7, 1e7, 6e6]),
    step_s=st.sampled_from([0.0, 1e-3, 1e-2]),
)
def test_nothing_that_is_offered_is_faster(
    profile: ModelProfile, cluster: Cluster, batch_size: int, memory: float | None, step_s: float
) -> None:
    """No candidate beats the result, with and without short memory or sharding.

    Candidates that bounds leave out, or that wait as lower-memory variants, are no loss.
    """
    cluster = replace(cluster, memory_bytes=memory)
    profile = replace(profile, layers=tuple(replace(layer, step_s=step_s) for layer in profile.layers))
    names = ("data_parallel", "flush", "model_parallel", "two_bw", "interleaved")
    found = search(profile, cluster, PlanRequest(batch_size, strategies=names))
    offered = every(SearchSpace(profile, cluster, batch_size), names)
    assert bool(found.candidates) == bool(offered)
    if offered:
        least = min(seconds for seconds, _, _ in offered)
        assert fastest(found).iteration_s <= least * (1 + TIE)
        assert found.best.iteration_s <= fastest(found).iteration_s * (1 + TIE)


@examples(15)
@given(
    profile=profiles(most=6),
    cluster=clusters(),
    batch_size=st.integers(1, 8),
    faster=st.sampled_from([1.5, 2.0, 7.0, 1000.0]),
    level=st.integers(0, 1),
)
def test_faster_links_never_give_a_worse_plan(
    profile: ModelProfile, cluster: Cluster, batch_size: int, faster: float, level: int
) -> None:
    """No plan found for slow links beats the result on fast links.

    Candidates do not depend on the links. So the best gets no slower, unless its own plan does: on a shared link, an
    earlier transfer can delay another.
    """
    cluster = replace(cluster, host_cores=None, transfer_cores=0.0)
    quick = replace(
        cluster,
        levels=tuple(
            replace(
                one,
                bandwidth_bytes_per_s=one.bandwidth_bytes_per_s * faster,
                latency_s=one.latency_s / faster,
            )
            if k == min(level, len(cluster.levels) - 1)
            else one
            for k, one in enumerate(cluster.levels)
        ),
    )
    slow, fast = (
        search(profile, one, PlanRequest(batch_size, strategies=PIPELINES, buckets="default"))
        for one in (cluster, quick)
    )
    moved = [predict_iteration(replace(c.plan, cluster=quick), profile).iteration_s for c in slow.candidates]
    assert fastest(fast).iteration_s <= min(moved) * (1 + TIE)
    same = moved[slow.candidates.index(fastest(slow))]
    assert fastest(fast).iteration_s <= max(same, fastest(slow).iteration_s) * (1 + TIE)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [8, 7])
def test_the_same_answer_to_the_byte(batch_size: int) -> None:
    """Two searches, also with another order of strategies, write the same plans."""
    first, second = (
        search(PROFILE, CLUSTER, PlanRequest(batch_size, synchronous=False), clock=ticks) for _ in range(2)
    )
    assert first == second
    assert [c.plan.to_yaml() for c in first.candidates] == [c.plan.to_yaml() for c in second.candidates]
    turned = search(PROFILE, CLUSTER, PlanRequest(batch_size, strategies=members()[::-1]), clock=ticks)
    assert turned.best.plan.to_yaml() == first.best.plan.to_yaml()
    assert turned.best.iteration_s == first.best.iteration_s


def test_candidates_are_in_order_and_say_what_their_plans_do() -> None:
    """Candidates are sorted but for ties; plans compile, fit and predict the same."""
    found = search(PROFILE, CLUSTER, PlanRequest(8, synchronous=False))
    assert {c.strategy for c in found.candidates} == set(searched())
    seconds = [c.iteration_s for c in found.candidates]
    near = [s for s in seconds if s <= min(seconds) * (1 + TIE)]
    assert sorted(seconds[: len(near)]) == sorted(near)
    assert seconds[len(near) :] == sorted(seconds[len(near) :])
    for candidate in found.candidates:
        again = predict_iteration(candidate.plan, PROFILE)
        assert again == candidate.plan.predicted
        assert again.iteration_s == candidate.iteration_s
        assert candidate.samples_per_s == pytest.approx(8 / candidate.iteration_s)
        assert again.peak_memory_bytes == candidate.peak_memory_bytes
        assert Plan.from_yaml(candidate.plan.to_yaml()) == candidate.plan
        assert candidate.plan.profile_digest == PROFILE.digest


def test_one_strategy_alone_gives_the_same_best_of_its_own() -> None:
    """A strategy's best is the same alone as among all strategies.

    The exception is a strategy with too many simulated candidates.
    """
    together = search(PROFILE, CLUSTER, PlanRequest(8, synchronous=False))
    for name in searched():
        alone = search(PROFILE, CLUSTER, PlanRequest(8, strategies=(name,)))
        own = [c for c in together.candidates if c.strategy == name]
        if len(own) < SIMULATED_PER_STRATEGY:
            assert min(c.iteration_s for c in own) <= fastest(alone).iteration_s * (1 + TIE)


def test_ties_go_to_what_is_simple() -> None:
    """With free links and equal layers, data parallelism wins ties with pipelines."""
    cluster = Cluster("free", (Level("server", 4, 1e15),), "cpu-core")
    found = search(chain(4, device_type="cpu-core"), cluster, PlanRequest(16, strategies=("data_parallel", "two_bw")))
    assert found.best.strategy == "data_parallel"
    assert fastest(found).iteration_s * (1 + TIE) >= found.best.iteration_s


def test_slow_links_make_pipelines_of_wide_models() -> None:
    """With large weights, pipelines win on slow links, data parallelism on fast ones."""
    profile = chain(8, forward_s=1e-3, backward_s=2e-3, weights_bytes=4e8, activation_bytes=1e4, device_type="cpu-core")
    names = ("data_parallel", "flush")
    slow, fast = (
        search(
            profile,
            Cluster("c", (Level("server", 2, rate),), "cpu-core", memory_bytes=1e11),
            PlanRequest(16, strategies=names),
        ).best.strategy
        for rate in (2e8, 1e12)
    )
    assert (slow, fast) == ("flush", "data_parallel")


def test_a_batch_that_no_microbatch_divides() -> None:
    """Seven samples in microbatches of two: the last is ragged, and the plan says so."""
    found = search(PROFILE, CLUSTER, PlanRequest(7, strategies=("flush",), microbatch_sizes=(2,)))
    plan = found.best.plan
    assert [plan.samples(m) for m in range(plan.microbatches)] == [2, 2, 2, 1]


def test_recomputation_only_where_memory_is_short() -> None:
    """Without enough memory for stashes, the same stages recompute."""
    profile = chain(4, activation_bytes=1e5, stash_bytes=1e8, weights_bytes=1e6, device_type="cpu-core")
    cluster = Cluster("two", (Level("server", 2, 1e9),), "cpu-core")
    roomy, tight = (
        search(
            profile, replace(cluster, memory_bytes=size), PlanRequest(8, strategies=("gpipe",), microbatch_sizes=(1,))
        )
        for size in (1e10, 1e9)
    )
    assert not any(stage.recompute for c in roomy.candidates for stage in c.plan.stages)
    assert all(stage.recompute for stage in tight.best.plan.stages)
    assert tight.best.iteration_s > roomy.best.iteration_s
    assert any(refusal.missing_bytes > 0 for refusal in tight.refused)


@pytest.mark.slow
@examples(10)
@given(profile=profiles(most=5), cluster=clusters(), share=st.floats(0.3, 1.0))
def test_what_is_best_of_its_strategy_passes_the_proof(profile: ModelProfile, cluster: Cluster, share: float) -> None:
    """The result passes `check` however short memory is."""
    free = search(profile, cluster, PlanRequest(6, strategies=PIPELINES), clock=ticks).best
    need = max(free.peak_memory_bytes.values())
    tight = replace(cluster, memory_bytes=share * need)
    try:
        found = search(profile, tight, PlanRequest(6, strategies=PIPELINES), clock=ticks)
        best = {"best of all": found.best.plan}
    except RefusedError:
        return
    for candidate in sorted(found.candidates, key=lambda candidate: candidate.iteration_s):
        best.setdefault(candidate.strategy, candidate.plan)
    for plan in best.values():
        assert problems_of(LoadedPlan(plan, profile), plan.compile(profile)) == ()


def test_nothing_fits() -> None:
    """The error names the nearest miss and a next step; every refusal has a reason."""
    found = search(PROFILE, replace(CLUSTER, memory_bytes=1e6), PlanRequest(8))
    assert found.candidates == ()
    assert all(len(refusal.reason) > 10 for refusal in found.refused)
    least = min((r for r in found.refused if r.missing_bytes), key=lambda r: r.missing_bytes)
    with pytest.raises(RefusedError) as caught:
        _ = found.best
    assert least.reason in str(caught.value)
    assert "more memory" in caught.value.next_step
    assert caught.value.exit_code == 2


def test_nothing_is_supported() -> None:
    """One layer on many devices with one sample: the strategy's own reason is given."""
    found = search(chain(1, device_type="cpu-core"), CLUSTER, PlanRequest(1, strategies=("flush", "interleaved")))
    with pytest.raises(RefusedError, match="flush: no candidate for 4 devices and a batch of 1"):
        _ = found.best


def test_replicas_that_take_their_turns_too_seldom() -> None:
    """A schedule with too many forwards in a period is refused before compilation."""
    profile = chain(
        3, forward_s=[0.1, 0.15, 0.2], backward_s=[0.1, 0.15, 0.2], weights_bytes=1.0, device_type="cpu-core"
    )
    cluster = Cluster("many", (Level("server", 64, 1e12),), "cpu-core")
    found = search(profile, cluster, PlanRequest(64, strategies=("gpipe", "data_parallel"), microbatch_sizes=(1,)))
    for candidate in found.candidates:
        assert candidate.plan.microbatches * len(candidate.plan.stages) <= MAX_FORWARDS


@pytest.mark.parametrize(
    ("batch_size", "names", "words"),
    [
        (0, (), "batch_size: found 0"),
        (-3, (), "batch_size: found -3"),
        (8, ("gpip",), "'gpip'.*Did you mean 'gpipe'"),
    ],
)
def test_arguments_that_make_no_sense(batch_size: int, names: tuple[str, ...], words: str) -> None:
    """Each invalid argument is named."""
    with pytest.raises(InputError, match=words):
        search(PROFILE, CLUSTER, PlanRequest(batch_size, strategies=names))


def test_a_profile_of_a_device_that_nobody_knows() -> None:
    """A profile of an unknown device type is refused before the search."""
    with pytest.raises(InputError, match="device type"):
        search(chain(4, device_type="abacus"), CLUSTER, PlanRequest(8))


@pytest.mark.parametrize(("of_job", "told"), [(0, False), (8, False), (4, True), (16, True)])
def test_a_batch_that_the_job_does_not_have(of_job: int, told: bool) -> None:
    """A note names the batch size that training will require."""
    notes = search(replace(PROFILE, batch_size=of_job), CLUSTER, PlanRequest(8, strategies=("data_parallel",))).notes
    assert [note for note in notes if "batch_size" in note] == (
        [
            f"the job was profiled with batch_size={of_job}: `hocket train` takes a plan for 8 only after the job says batch_size=8"
        ]
        if told
        else []
    )


def test_progress_ends_at_the_total() -> None:
    """Progress counts finished candidates, and the last call is complete."""
    told: list[tuple[int, int, str]] = []
    search(
        PROFILE,
        CLUSTER,
        PlanRequest(8, synchronous=False),
        progress=lambda done, total, what: told.append((done, total, what)),
    )
    assert told[-1][0] == told[-1][1]
    assert all(0 <= done <= total for done, total, _ in told)
    assert {what for _, _, what in told} >= {f"choices of {name}" for name in searched()}


def test_a_plan_of_a_choice_by_hand() -> None:
    """A plan has names instead of layer numbers."""
    space = SearchSpace(PROFILE, CLUSTER, 8)
    choice = next(iter(strategy("flush").choices(space)))
    plan = make_plan(space, "flush", choice, "p.json")
    assert plan.cuts(PROFILE) == choice.stages
    assert (plan.profile, plan.model, plan.predicted) == ("p.json", "chain", None)
    assert as_data(plan)["batch_size"] == 8


@pytest.mark.slow
def test_most_of_what_is_offered_need_not_be_simulated() -> None:
    """On 32 devices, bounds leave out thousands of candidates, in a fixed order."""
    profile = chain(
        32,
        forward_s=[1e-3 * (1 + i % 5) for i in range(32)],
        backward_s=[2e-3 * (1 + i % 3) for i in range(32)],
        microbatch_sizes=(1, 2, 4),
        device_type="cpu-core",
    )
    levels = (Level("server", 8, 1e10, 1e-5, shared=False), Level("network", 4, 1e9, 1e-5))
    found = search(
        profile, Cluster("many", levels, "cpu-core"), PlanRequest(64, strategies=("data_parallel", "flush", "two_bw"))
    )
    assert found.considered > 2000
    assert len(found.candidates) + len(found.refused) < found.considered / 50


def test_a_batch_beyond_all_measure_is_refused() -> None:
    """A batch with too many microbatches for any schedule is refused at once."""
    profile = chain(4, microbatch_sizes=(1, 2, 4), device_type="cpu-core")
    two = Cluster("two", (Level("local", 2, 1e9),), "cpu-core")
    with pytest.raises(InputError, match="batch_size: found 99999999; expected at most 32768"):
        search(profile, two, PlanRequest(99_999_999))
    with pytest.raises(InputError, match=r"batch_size: found 8193; expected at most 8192, .* that was named"):
        search(profile, two, PlanRequest(8193, microbatch_sizes=(1,)))


@pytest.mark.parametrize(("batch_size", "sizes", "expected"), [(520, (), 8), (1024, (), 8), (128, (1,), 1)])
@pytest.mark.thinned(most=1)
def test_a_long_batch_is_divided(batch_size: int, sizes: tuple[int, ...], expected: int) -> None:
    """A batch of more than 64 microbatches uses all devices, with microbatches as measured or as named."""
    profile = chain(6, forward_s=1e-3, microbatch_sizes=(1, 2, 4, 8), device_type="cpu-core")
    found = search(profile, CLUSTER, PlanRequest(batch_size, microbatch_sizes=sizes))
    plan = found.best.plan
    assert plan.microbatch_size == expected
    assert {d for stage in plan.stages for d in stage.devices} == set(range(CLUSTER.devices))
    assert not any("were not measured" in note for note in found.notes)


def test_who_clips_gets_strategies_that_can() -> None:
    """Gradient clipping refuses strategies with stages that update at other moments.

    Waves are an exception. The best of the others has a norm.
    """
    profile = replace(PROFILE, clip_grad_norm=1.0)
    found = search(profile, CLUSTER, PlanRequest(4, synchronous=False))
    assert found.candidates
    rules = [c.plan.compile(profile).rule for c in found.candidates]
    assert all(rule.at_one_moment or waves(rule) for rule in rules)
    said = [r for r in found.refused if "clip_grad_norm" in r.reason]
    assert "two_bw" in {r.strategy for r in said}
    plan = found.candidates[0].plan
    kinds = {i.kind for _, i in plan.compile(profile).instructions()}
    assert Kind.NORM in kinds


def test_who_clips_each_stage_gets_every_strategy() -> None:
    """Only sharded steps are refused for it; the search says that losses depend on the cuts."""
    profile = replace(PROFILE, clip_stage_norm=1.0)
    found = search(profile, CLUSTER, PlanRequest(4, synchronous=False))
    assert {one.strategy for one in found.refused if "clip_grad_norm" in one.reason} == {"fully_sharded"}
    rules = [one.plan.compile(profile).rule for one in found.candidates]
    assert not all(rule.at_one_moment or waves(rule) for rule in rules)
    assert any("each stage clips its gradients by their own norm" in note for note in found.notes)
    several = [one for one in found.candidates if sum(not stage.wave for stage in one.plan.stages) > 1]
    assert several
    assert all([one.kind for one in candidate.updates.differences] == ["clipping"] for candidate in several)


def test_chunks_of_one_device_may_share_weights() -> None:
    """The first and the last of several chunks on a device may share weights."""
    plain = chain(8, device_type="cpu-core")
    layers = tuple(replace(layer, parameters=(f"w{k % 7}",)) for k, layer in enumerate(plain.layers))
    tied = replace(plain, layers=layers, ties=((0, 7),))
    two = Cluster("two", (Level("server", 2, 1e12),), "cpu-core")
    found = search(tied, two, PlanRequest(8), clock=ticks)
    assert not any("share tied weights" in one.reason for one in found.refused)
    assert found.candidates


def test_only_stages_that_must_make_their_stashes_again() -> None:
    """With slightly too little memory, only the first stage of 1F1B recomputes."""
    profile = chain(
        4, forward_s=1e-3, backward_s=2e-3, stash_bytes=1e8, activation_bytes=1e5, weights_bytes=1e6,
        microbatch_sizes=(1,), device_type="v100-16gb",
    )  # fmt: skip
    cluster = Cluster("two", (Level("server", 2, 1e9, 1e-5, False),), "v100-16gb", memory_bytes=0.35e9)
    best = search(profile, cluster, PlanRequest(8, strategies=("flush",))).best
    assert [stage.recompute for stage in best.plan.stages] == [True, False]


def test_old_weights_are_asked_for() -> None:
    """Stale weights are considered only if a strategy or all strategies are asked for."""
    found = search(PROFILE, CLUSTER, PlanRequest(8))
    assert {one.strategy for one in found.candidates} == set(synchronous_strategies()) & set(searched())
    assert all(one.updates.same for one in found.candidates)
    assert found == replace(search(PROFILE, CLUSTER, PlanRequest(8, synchronous=True)), search_s=found.search_s)
    assert {one.strategy for one in search(PROFILE, CLUSTER, PlanRequest(8, strategies=("two_bw",))).candidates} == {
        "two_bw"
    }
    with pytest.raises(InputError, match="an asynchronous strategy"):
        search(PROFILE, CLUSTER, PlanRequest(8, strategies=("two_bw",), synchronous=True))


def test_state_that_does_not_fit_whole_is_divided() -> None:
    """Optimizer state is sharded if it does not fit whole, even with free steps.

    It stays whole if sharding is ruled out.
    """
    heavy = chain(4, forward_s=0.1, weights_bytes=1e8, optimizer_bytes=8e8, device_type="cpu-core")
    small = replace(CLUSTER, memory_bytes=3e9)
    found = search(heavy, small, PlanRequest(8, strategies=("data_parallel",)))
    assert {one.plan.shard for one in found.candidates} == {"optimizer"}
    assert found.best.plan.shard == "optimizer"
    assert any(one.missing_bytes > 0 for one in found.refused)
    with pytest.raises(RefusedError, match="nothing that fits"):
        search(heavy, small, PlanRequest(8, strategies=("data_parallel",), shards=("none",))).best  # noqa: B018
    roomy = search(heavy, replace(CLUSTER, memory_bytes=3e10), PlanRequest(8, strategies=("data_parallel",)))
    assert {one.plan.shard for one in roomy.candidates} == {"none"}
