"""Predictions of plans, in long and in short form."""

from dataclasses import replace

import pytest

from hocket.errors import InputError, RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import predict, predict_choice, predict_iteration
from hocket.profiling.analytic.synthetic import chain
from hocket.strategies.base.search_space import SearchSpace
from hocket.strategies.base.strategy import members, strategy

CLUSTER = Cluster("c", (Level("server", 4, 1e9, 1e-4),), "cpu-core")
PROFILE = chain(8, activation_bytes=4096.0, forward_s=[0.1, 0.2, 0.3, 0.1, 0.2, 0.1, 0.2, 0.3], device_type="cpu-core")


def plan(name: str, depth: int, batch_size: int = 8, microbatch_size: int = 2) -> Plan:
    """A straight plan of equal stages."""
    each = len(PROFILE.layers) // depth
    names = [layer.name for layer in PROFILE.layers]
    stages = tuple(PlanStage(tuple(names[s * each : (s + 1) * each]), (s,)) for s in range(depth))
    return Plan(name, "chain", batch_size, microbatch_size, stages, CLUSTER)


@pytest.mark.parametrize(
    ("name", "depth"), [("gpipe", 4), ("flush", 2), ("two_bw", 4), ("pipedream", 4), ("data_parallel", 1)]
)
def test_the_short_form_says_the_same(name: str, depth: int) -> None:
    """The short form equals the summary, also with a cached program."""
    one = plan(name, depth)
    trace, summary = predict(one, PROFILE)
    assert len(trace) == summary.instructions
    for _ in range(2):
        short = predict_iteration(one, PROFILE)
        assert short.iteration_s == summary.iteration_s
        assert short.samples_per_s == summary.samples_per_s == pytest.approx(8 / summary.iteration_s)
        assert short.peak_memory_bytes == summary.peak_memory_bytes
        assert short.peak_memory_bytes == trace.peak_memory_bytes()
        assert short.bubble_fraction == summary.bubble_fraction


def test_an_iteration_is_a_batch() -> None:
    """A strategy that updates after each microbatch is reported by the batch.

    Twice the batch takes twice the time.
    """
    single, double = (predict_iteration(plan("pipedream", 4, batch_size=b), PROFILE) for b in (8, 16))
    assert double.iteration_s == pytest.approx(2 * single.iteration_s)
    assert double.samples_per_s == pytest.approx(single.samples_per_s)


def test_a_ragged_last_microbatch_is_cheaper() -> None:
    """Seven samples cost less than eight and more than six."""
    found = [predict_iteration(plan("flush", 2, batch_size=b), PROFILE).iteration_s for b in (6, 7, 8)]
    assert found == sorted(set(found))


@pytest.mark.parametrize(("batch_size", "size"), [(5, 2), (7, 3), (9, 2)])
def test_ragged_batches_follow_each_other_without_a_flush(batch_size: int, size: int) -> None:
    """On one device an iteration costs the seconds of its samples.

    A period is one microbatch, and the last one is smaller.
    """
    one = plan("pipedream", 1, batch_size=batch_size, microbatch_size=size)
    assert predict_iteration(one, PROFILE).iteration_s == pytest.approx(batch_size * (1.5 + 8 * 2.0))


def test_other_profiles_and_clusters_give_other_figures() -> None:
    """A shared lowered program does not carry costs from one plan to another."""
    slow = replace(
        PROFILE, layers=tuple(replace(x, forward_s=tuple(2 * s for s in x.forward_s)) for x in PROFILE.layers)
    )
    assert (
        predict_iteration(plan("flush", 2), slow).iteration_s > predict_iteration(plan("flush", 2), PROFILE).iteration_s
    )
    thin = Cluster("thin", (Level("server", 4, 1e6),), "cpu-core")
    other = replace(plan("flush", 2), cluster=thin)
    assert predict_iteration(other, PROFILE).iteration_s > predict_iteration(plan("flush", 2), PROFILE).iteration_s


@pytest.mark.parametrize("name", members())
def test_every_strategy_can_be_predicted(name: str) -> None:
    """Candidates of every strategy have positive times and a valid utilization."""
    space = SearchSpace(PROFILE, CLUSTER, 8, (2,))
    seen = 0
    for choice in strategy(name).choices(space):
        try:
            found = predict_choice(space, name, choice)
        except RefusedError:
            continue
        seen += 1
        assert found.iteration_s > 0
        assert found.bubble_fraction > -1e-9
        assert min(found.peak_memory_bytes.values()) > 0
        if seen == 6:
            break
    assert seen


def test_a_plan_of_another_model_is_refused() -> None:
    """The error names the layer that the profile lacks."""
    with pytest.raises(InputError, match="layer7"):
        predict(plan("flush", 2), chain(7, device_type="cpu-core"))
