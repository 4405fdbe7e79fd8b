"""What-if answers equal planning or simulating on the changed cluster."""

from dataclasses import replace

import pytest

from hocket.errors import InputError
from hocket.hardware.change import Change
from hocket.hardware.cluster import Cluster, Level, Node
from hocket.planning.explain.rejected import refused_meshes
from hocket.planning.explain.what_if import (
    Scenario,
    ask_plan,
    ask_plan_of_sizes,
    ask_profile,
    ask_sizes,
    fewer,
    sizes_of,
    usual,
)
from hocket.planning.load import LoadedPlan
from hocket.planning.mesh.plan_model import SizedSearch, search_sizes
from hocket.planning.predict.planned_run import PlannedRun
from hocket.planning.predict.predict import predict_iteration, shorter_runs
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search, search_widths
from hocket.profiling.analytic.sizes import published
from hocket.profiling.analytic.synthetic import chain
from tests.planning.mesh.test_layout import GPT, SERVERS

TIGHT = replace(SERVERS, memory_bytes=0.6e9)
SERVER = Cluster("four", (Level("server", 4, 1e9, 1e-5),), "v100-16gb")
HEAVY = chain(
    4,
    forward_s=1e-3,
    backward_s=2e-3,
    weights_bytes=100e6,
    activation_bytes=2e6,
    microbatch_sizes=(1,),
    device_type="v100-16gb",
)
PROFILE = chain(6, forward_s=1e-3, backward_s=2e-3, weights_bytes=2e7, device_type="v100-16gb")


@pytest.fixture(scope="module")
def sized() -> SizedSearch:
    """A search with little memory."""
    return search_sizes(GPT, TIGHT, PlanRequest(16))


@pytest.mark.slow
@pytest.mark.parametrize("question", usual(TIGHT), ids=lambda one: one.text)
def test_sizes_planned_anew(sized: SizedSearch, question: Scenario) -> None:
    """The answer equals a search on the changed cluster.

    It is never below the same plan. A bound is not below the answer.
    """
    answer = ask_sizes(sized, question)
    batch_size = question.samples(16)
    there = search_sizes(GPT, question.change.of(TIGHT), PlanRequest(batch_size)).best
    now = sized.best.predicted.samples_per_s
    assert answer.anew is not None
    assert answer.anew == pytest.approx(max(there.predicted.samples_per_s / now - 1, answer.same or 0), abs=0.0101)
    assert answer.same is None or answer.same <= answer.anew
    quick = ask_sizes(sized, question, search=False)
    assert quick.same == answer.same
    if quick.at_most:
        assert quick.anew is not None
        assert quick.anew >= answer.anew - 1e-9


@pytest.mark.slow
def test_more_memory_helps_where_it_is_short(sized: SizedSearch) -> None:
    """More memory helps if it is short, and not otherwise."""
    answer = ask_sizes(sized, Scenario("much more", Change(memory=4.0)))
    assert (answer.same, answer.anew) != (0.0, 0.0)
    assert (answer.anew or 0) > 0.01
    plenty = ask_sizes(search_sizes(GPT, SERVERS, PlanRequest(16)), Scenario("more", Change(memory=1.1)))
    assert (plenty.same, plenty.anew) == (0.0, 0.0)
    less = ask_sizes(sized, Scenario("less", Change(memory=0.6)))
    assert less.same is None
    assert "needs" in less.why
    assert (less.anew or 0) <= 0


@pytest.mark.slow
def test_other_numbers_of_devices(sized: SizedSearch) -> None:
    """The same plan is impossible; the best plan there is found.

    A cluster that cannot be planned is reported.
    """
    answer = ask_sizes(sized, Scenario("16", Change(devices=16)))
    assert answer.same is None
    assert (answer.anew or 0) > 0.3
    assert ask_sizes(sized, Scenario("k80", Change(device_type="k80"))).why.startswith("device k80")
    assert "the plan does not fit a batch of " in ask_sizes(sized, Scenario("odd", batch=1.07), search=False).why


@pytest.mark.slow
def test_fewer_devices_without_a_slow_link() -> None:
    """Fewer devices are tried if all are idle most of the time.

    One server and one device are then faster, as in a search there.
    """
    slow = replace(SERVERS, levels=(SERVERS.levels[0], replace(SERVERS.levels[1], bandwidth_bytes_per_s=1e7)))
    inside = replace(slow, levels=slow.levels[:1])
    found = search_sizes(GPT, slow, PlanRequest(16))
    server, device = sorted(fewer(slow, found.best.predicted.bubble_fraction), key=lambda one: one.text, reverse=True)
    assert server.text == f"one server alone, {inside.devices} devices"
    assert device.text == "one device alone"
    assert device.change.of(slow).devices == 1
    there = search_sizes(GPT, inside, PlanRequest(16)).best.predicted.samples_per_s
    answer = ask_sizes(found, server)
    assert answer.same is None
    assert answer.anew == pytest.approx(there / found.best.predicted.samples_per_s - 1, abs=0.0101)
    assert answer.gain > 1


def test_fewer_devices_are_no_question_where_all_are_busy() -> None:
    """Fewer devices are not tried if all are busy, or if types differ."""
    assert fewer(SERVERS, 0.9) == ()
    assert [one.change.of(SERVERS).devices for one in fewer(SERVERS, 1.0)] == [SERVERS.devices // 2]
    nodes = (Node("a100-40gb", 2), Node("v100-16gb", SERVERS.devices - 2))
    assert fewer(replace(SERVERS, device_type="", nodes=nodes), 50.0) == ()


def test_a_plan_as_it_stands() -> None:
    """The plan is simulated again; a device that lacks memory is named.

    A search is added on request.
    """
    plan = search_widths({"": PROFILE}, SERVER, PlanRequest(16, strategies=["flush"])).best.plan
    question = Scenario("quicker", Change(bandwidth={"server": 3.0}))
    answer = ask_plan(LoadedPlan(plan, PROFILE), question)
    changed = replace(plan, cluster=question.change.of(SERVER))
    now, then = (predict_iteration(one, PROFILE).samples_per_s for one in (plan, changed))
    assert answer.same == pytest.approx(then / now - 1)
    assert answer.anew is None
    assert ask_plan(LoadedPlan(plan, PROFILE), Scenario("less", Change(memory=1e-3))).why.startswith("device ")
    assert (
        "the plan does not fit 8 devices"
        in ask_plan(LoadedPlan(plan, PROFILE), Scenario("more", Change(devices=8))).why
    )
    both = ask_plan(LoadedPlan(plan, PROFILE), Scenario("more", Change(devices=8)), search=True)
    assert both.same is None
    assert (both.anew or 0) > 0.2


def test_a_plan_that_swaps() -> None:
    """A scenario for a plan that swaps doubles the host link's bandwidth.

    This saves half of the plan's time. Other plans do not get this scenario.
    """
    alone = Cluster("one", (Level("server", 1, 1e9),), "v100-16gb", memory_bytes=5e8, host_memory_bytes=9e9)
    plan = next(
        one.plan
        for one in search(HEAVY, alone, PlanRequest(4)).candidates
        if one.plan.swap and not one.plan.swap.prefetch
    )
    (question,) = [one for one in usual(alone, swaps=True) if one not in usual(alone)]
    assert question.text == "host link of twice the bandwidth"
    path = shorter_runs(PlannedRun.of(plan, HEAVY)).critical_path
    gain = path.iteration_s / (path.iteration_s - path.host_s / 2) - 1
    assert ask_plan(LoadedPlan(plan, HEAVY), question).same == pytest.approx(gain, rel=0.01)
    assert gain > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("question", usual(SERVER), ids=lambda one: one.text)
@pytest.mark.thinned(most=2)
def test_profiles_planned_anew(question: Scenario) -> None:
    """The answer equals a search there, or the same plan if that is better."""
    profiles = {"": PROFILE}
    found = search_widths(profiles, SERVER, PlanRequest(16))
    answer = ask_profile(found, question)
    there = search_widths(profiles, question.change.of(SERVER), PlanRequest(question.samples(16))).best.samples_per_s
    assert answer.anew == pytest.approx(max(there / found.best.samples_per_s - 1, answer.same or 0))
    assert answer.gain == answer.anew


@pytest.mark.slow
def test_refused_meshes_have_reasons(sized: SizedSearch) -> None:
    """Refused layouts say how much memory or time they lack, or what is not divisible.

    None of them is a candidate.
    """
    refused = refused_meshes(sized)
    reasons = " | ".join(one.reason for one in refused)
    assert "needs at least" in reasons
    assert "on a device of 572.20 MiB" in reasons
    assert "more than the best" in reasons
    assert all(one.missing_bytes > 0 for one in refused if one.reason.startswith("needs"))
    assert not {one.config for one in refused} & {str(one.mesh) for one in sized.meshes.found}
    turned = [refused_meshes(search_sizes(GPT, TIGHT, PlanRequest(16, microbatch_sizes=b))) for b in ((1, 2), (2, 1))]
    assert turned[0] == turned[1]
    odd = {one.config: one.reason for one in refused_meshes(search_sizes(GPT, SERVERS, PlanRequest(12)))}
    assert odd["d8"] == "a batch of 12 is no multiple of 8 columns times a microbatch"
    assert "are no multiple of 8 stages (Narayanan's dissertation, section 4.2.2)" in odd["p8 t1 d1 b1"]
    none = search_sizes(GPT, replace(SERVERS, memory_bytes=1e8), PlanRequest(16))
    assert all(one.missing_bytes > 0 for one in refused_meshes(none) if one.reason.startswith("needs"))


def test_what_the_same_plan_cannot_do_is_searched_all_the_same() -> None:
    """A batch smaller than the plan's microbatches has an answer from the search only."""
    alone = {"microbatch_sizes": (16,), "strategies": ("data_parallel",)}
    plan = search_widths({"": PROFILE}, SERVER, PlanRequest(16, **alone)).best.plan
    answer = ask_plan(LoadedPlan(plan, PROFILE), Scenario("less", batch=0.5), search=True)
    now = predict_iteration(plan, PROFILE).samples_per_s
    assert answer.same is None
    assert answer.anew == pytest.approx(
        search_widths({"": PROFILE}, SERVER, PlanRequest(8)).best.samples_per_s / now - 1
    )


def test_the_same_plan_is_answered_where_the_search_is_refused() -> None:
    """A batch that is too long for a search has an answer for the same plan, with the search's reason."""
    alone = {"microbatch_sizes": (16,), "strategies": ("data_parallel",)}
    plan = search_widths({"": PROFILE}, SERVER, PlanRequest(16, **alone)).best.plan
    question = Scenario("long", batch=16384.0)
    answer = ask_plan(LoadedPlan(plan, PROFILE), question, search=True)
    assert answer.same is not None
    assert answer.same == ask_plan(LoadedPlan(plan, PROFILE), question).same
    assert answer.anew is None
    assert "batch_size: found 262144; expected at most" in answer.why


def test_a_plan_by_sizes_is_searched_by_sizes() -> None:
    """Plans of a published model are searched as by `hocket plan`.

    For a model with a calibration, the advice names the right command.
    """
    eight = replace(SERVERS, levels=(Level("server", 8, 1e11, 1e-6),))
    found = search_sizes(published("bert-large"), eight, PlanRequest(64))
    plan, profile = found.plan(found.best, "p.json"), found.profile_of(found.best)
    question = Scenario("twice", batch=2.0)
    opened = LoadedPlan(plan, profile)
    answer = ask_plan_of_sizes(opened, sizes_of(opened), question)
    there = search_sizes(published("bert-large"), eight, PlanRequest(128)).best
    gain = 128 / there.iteration_s * found.best.iteration_s / 64 - 1
    assert answer.anew == pytest.approx(max(gain, answer.same or 0.0), abs=0.0101)
    slower = replace(profile, layers=tuple(replace(one, forward_s=one.backward_s) for one in profile.layers))
    for other in (replace(plan, model="mine"), plan):
        with pytest.raises(InputError, match="hocket what-if MODEL CLUSTER -B 64"):
            sizes_of(LoadedPlan(other, slower))
