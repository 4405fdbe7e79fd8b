"""Extrapolation of long batches equals their simulation, whatever takes longest."""

from collections.abc import Callable, Iterator
from random import Random

import pytest

from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage, Predicted
from hocket.planning.predict.extrapolate import foreseen, shorter
from hocket.planning.predict.planned_run import PlannedRun
from hocket.planning.predict.predict import (
    _round_s,
    predict_choice,
    predict_iteration,
    predict_run,
    shorter_runs,
)
from hocket.profiling.analytic.synthetic import chain
from hocket.strategies.base.search_space import Candidate, SearchSpace
from hocket.strategies.base.strategy import members, strategy
from tests.tiers import alternating

ROUNDS = 60


def cases(name: str, seed: int) -> Iterator[tuple[SearchSpace, Candidate]]:
    """Long batches of a strategy's candidates, for random layers and links.

    Links may be slower than computation.
    """
    random = Random(seed)
    like = random.random() < 0.5

    def figures(least: float, most: float) -> list[float]:
        base = random.uniform(least, most)
        return [10 ** (base + (0.0 if like else random.uniform(-0.5, 0.5))) for _ in range(8)]

    profile = chain(
        8, forward_s=figures(-3, -3), backward_s=figures(-2.7, -2.7), activation_bytes=figures(3, 6), stash_bytes=1e6,
        weights_bytes=figures(5, 8), microbatch_sizes=(1,), device_type="v100-16gb",
    )  # fmt: skip
    fast = 10 ** random.uniform(7, 10)
    slow = fast * 10 ** random.uniform(-2, 0)
    levels = Level("server", 2, fast, 1e-5, random.random() < 0.5), Level("net", 2, slow, 1e-5, random.random() < 0.7)
    cluster = Cluster("servers", levels, "v100-16gb")
    for choice in strategy(name).choices(SearchSpace(profile, cluster, 8)):
        batch = ROUNDS * len(choice.stages[0].devices)
        if shorter(name, choice.stages, (batch, 1)) is not None:
            yield SearchSpace(profile, cluster, batch), choice


STEADY = [name for name in members() if strategy(name).steady]


@pytest.mark.parametrize(("name", "seed"), alternating(STEADY, [3, 27]))
@pytest.mark.thinned(most=3)
def test_a_long_batch_is_foreseen_whatever_takes_longest(name: str, seed: int) -> None:
    """Computation, links with a rhythm, or overlapped all-reduces may take longest.

    Memory agrees within a message.
    """
    found = list(cases(name, seed))
    assert found
    for space, choice in found:
        whole = predict_choice(space, name, choice, most_forwards=10**9)
        told = predict_choice(space, name, choice, most_forwards=0)
        assert told.iteration_s == pytest.approx(whole.iteration_s, rel=1e-6), (seed, choice)
        # A message that arrives in the moment in which another one is freed is counted beside it or not, as times are rounded.
        message = max(space.profile.tensor_bytes(1))
        assert told.peak_memory_bytes == pytest.approx(whole.peak_memory_bytes, rel=1e-9, abs=1.01 * message), (
            seed,
            choice,
        )


@pytest.mark.parametrize("bytes_per_s", [2e7, 1e8, 1e9])
@pytest.mark.slow
def test_a_long_critical_path_sums_to_the_iteration(bytes_per_s: float) -> None:
    """The causes of a long critical path add up to the iteration.

    The plan is 2BW on two servers: gradients cross the network beside the next batch's computation, and take longer
    than it or not.
    """
    profile = chain(
        4, forward_s=1e-3, backward_s=2e-3, activation_bytes=1e3, microbatch_sizes=(1,), device_type="v100-16gb"
    )
    levels = Level("server", 2, 1e10, 0, False), Level("net", 2, bytes_per_s, 0, False)
    layers = [layer.name for layer in profile.layers]
    stages = PlanStage(tuple(layers[:2]), (0, 2)), PlanStage(tuple(layers[2:]), (1, 3))
    plan = Plan("two_bw", profile.name, 256, 1, stages, Cluster("c", levels, "v100-16gb"))
    path, whole = shorter_runs(PlannedRun.of(plan, profile)).critical_path, predict_iteration(plan, profile)
    assert path.iteration_s == pytest.approx(whole.iteration_s, rel=1e-6)


def predicted(seconds: float) -> Predicted:
    """An iteration with given seconds on one device."""
    return Predicted(seconds, 1 / seconds, {0: 1.0})


@pytest.mark.parametrize(
    "seconds_of",
    [
        lambda n: 5.0 + n,
        lambda n: max(100.0, 5.0 + n),  # an all-reduce beside compute
        lambda n: 5.0 + n + (n % 2) / 2,  # waiting for links, in a rhythm of two and of three rounds
        lambda n: 5.0 + 2 * n + (n % 3 == 0),
        lambda n: max(4000.0, 5.0 + n),  # no shorter batch shows it
    ],
)
@pytest.mark.parametrize("rounds", [600, 601, 602])
def test_batches_are_lengthened_until_they_lie_on_a_line(seconds_of: Callable[[int], float], rounds: int) -> None:
    """Batches are lengthened until they lie on a line; otherwise all is simulated.

    A round costs a second of computation.
    """
    found = foreseen(rounds, (4 + rounds % 4, 8 + rounds % 4), 10**6, lambda n: predicted(seconds_of(n)), 4.0)
    if seconds_of(rounds) == seconds_of(rounds - 1):
        assert found is None
    else:
        assert found is not None
        assert found[0].iteration_s == pytest.approx(seconds_of(rounds), rel=1e-9)


def test_a_batch_too_long_to_simulate_is_as_long_as_its_compute_at_least() -> None:
    """Without a line, a very long batch has at least the slope of its computation.

    No batch is simulated twice.
    """
    asked: list[int] = []

    def simulated(n: int) -> Predicted:
        asked.append(n)
        return predicted(max(4000.0, 5.0 + n))

    found = foreseen(6000, (4, 8), 1000, simulated, 4.0)
    assert found is not None
    assert found[0].iteration_s == pytest.approx(4000 + 6000 - found[1][0])
    assert found[0].iteration_s >= 6005
    assert max(asked) <= 1000
    assert len(asked) == len(set(asked))


def test_computation_bounds_a_round() -> None:
    """A longer batch is extrapolated from the first pair where nothing but computation takes time."""
    profile = chain(2, forward_s=1e-3, backward_s=2e-3, activation_bytes=0, weights_bytes=0, microbatch_sizes=(1,))
    stages = tuple(PlanStage((layer.name,), (s,)) for s, layer in enumerate(profile.layers))
    cluster = Cluster("c", (Level("server", 2, 1e12, 0, False),), profile.device_type)
    run = PlannedRun.of(Plan("flush", profile.name, 40_000, 2, stages, cluster), profile)
    sizes = shorter(run.strategy, run.cuts, run.batch)
    assert _round_s(run, sizes) == pytest.approx(3e-3 * (sizes[1] - sizes[0]))
    assert len(shorter_runs(run).runs) == 2
    assert predict_run(run).iteration_s == pytest.approx(40_002 * 3e-3, rel=1e-6)
