"""A background job beside plans of every strategy: runs end, within the hardware."""

from contextlib import suppress
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.cost.background.background import Background, Launch
from hocket.cost.contention import Ceiling, Collocation
from hocket.errors import InternalError, RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.background.background_job import alone
from hocket.planning.predict.predict import played
from hocket.planning.search.make_plan import make_plan
from hocket.profiling.analytic.synthetic import chain
from hocket.program.passes.swapping.settings import Swapping
from hocket.simulation.background.background import background_of, collocate
from hocket.simulation.background.replay import BackgroundReplay
from hocket.simulation.engine.unrolled import Unrolled
from hocket.simulation.result import SimulationResult
from hocket.simulation.simulator import play
from hocket.simulation.steady_state import steady_state
from hocket.strategies.base.search_space import SearchSpace
from hocket.strategies.base.strategy import members, strategy
from tests.simulation.helpers.chains import Chain
from tests.tiers import alternating, examples

GPU = "a100-40gb"
CLUSTER = Cluster("gpus", (Level("server", 2, 5e6, latency_s=1e-3),), GPU, host_memory_bytes=1e12)
SHORT = Background("job", 4, (Launch(0.05, 0.75), Launch(0.11)))
CHOICES, REPEATS = 3, 3


def profile(shares=(0.4, 1.0, 0.6, 0.5)):
    """Layers that use shares of a GPU with one sample.

    Up to 1 / share samples together take no longer.
    """
    plain = chain(len(shares), device_type=GPU, weights_bytes=1e6)

    def layer(one, share):
        longer = [max(1.0, size * share) for size in plain.microbatch_sizes]
        forward_s, backward_s = (tuple(row[0] * by for by in longer) for row in (one.forward_s, one.backward_s))
        return replace(one, forward_s=forward_s, backward_s=backward_s)

    return replace(plain, layers=tuple(map(layer, plain.layers, shares)))


PROFILE = profile()


@cache
def runs(name: str) -> tuple[SimulationResult, ...]:
    """Runs of a strategy's first candidates on two GPUs.

    A plan that swaps is added if the strategy allows it.
    """
    space = SearchSpace(PROFILE, CLUSTER, 8)
    plans = []
    for choice, _ in zip(strategy(name).choices(space), range(CHOICES), strict=False):
        plans.append(make_plan(space, name, choice))
    found = [played(plan, PROFILE, REPEATS) for plan in plans]
    with suppress(RefusedError):
        found.append(played(replace(plans[0], swap=Swapping("task")), PROFILE, REPEATS))
    assert found, name
    return tuple(found)


class Watched(BackgroundReplay):
    """A replay that records the pace of both jobs on each device over time."""

    def run(self):
        """Replay with empty records."""
        self.noted = []
        self._open = {}
        super().run()

    def _settle(self, device, now):
        super()._settle(device, now)
        state = (device.pace if device.layers else 0.0, device.speed if device.busy else 0.0)
        begin, *before = self._open.get(device.number, (0.0, 0.0, 0.0))
        self.noted.append((device.number, begin, now, *before))
        self._open[device.number] = (now, *state)


@pytest.mark.parametrize("name", members())
@pytest.mark.thinned(most=4)
def test_without_a_background_the_replay_is_the_run(name):
    """Without a background job the replay equals the run, for every strategy.

    Links, and devices with several compute lanes, are shared as in the kernel.
    """
    for run in runs(name):
        replay = BackgroundReplay(run, SHORT, Collocation(), ())
        replay.run()
        assert replay.start == pytest.approx(run.start_s.tolist(), rel=1e-9, abs=1e-9)
        assert replay.end == pytest.approx(run.end_s.tolist(), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "rules"),
    alternating(members(), [Collocation(), Collocation(beside=False), Collocation(priority=False, outstanding=2)]),
)
@pytest.mark.thinned
def test_every_strategy_ends_beside_a_background(name, rules):
    """Every strategy ends beside a background job, in the order of dependencies.

    Both jobs make progress.
    """
    for run in runs(name):
        found = collocate(run, SHORT, rules)
        after, unrolled = found.foreground, Unrolled(run.layout, run.costs)
        for n in range(len(after.end_s)):
            assert all(after.start_s[to] >= after.end_s[n] >= after.start_s[n] for to in unrolled.successors(n))
        assert after.makespan_s >= run.makespan_s * (1 - 1e-9)
        assert rules.priority or min(len(log) for log in found.launches.values()) > 0


RULES = st.builds(
    Collocation,
    priority=st.booleans(),
    beside=st.booleans(),
    outstanding=st.integers(1, 3),
    launch_s=st.sampled_from((None, 0.07)),
    compute_slowdown=st.sampled_from((1.0, 1.2)),
    slowdown_limit=st.sampled_from((float("inf"), 1.3)),
)
JOBS = st.lists(st.builds(Launch, st.floats(0.02, 0.5), st.floats(0.1, 1.0)), min_size=1, max_size=4)


@examples(60)
@given(st.sampled_from(members()), JOBS, RULES, st.integers(0, 3))
def test_two_jobs_do_no_more_in_any_window_than_the_better_one_alone(name, launches, rules, which):
    """Both jobs' work in a window is at most the window times the greater utilization.

    Work is seconds alone times utilization alone. The bound holds at every moment, and for whole runs.
    """
    run = runs(name)[which % len(runs(name))]
    job = Background("job", 1, tuple(launches))
    replay = Watched(run, job, rules, range(2))
    replay.run()
    for number, begin, end, ours, theirs in replay.noted:
        ceiling = replay.devices[number].ceiling
        assert ours <= 1 + 1e-9
        assert theirs <= 1 + 1e-9
        if end > begin and ours and theirs:
            assert ceiling.foreground * ours + ceiling.background * theirs <= 1 + 1e-9
    seconds = run.end_s - run.start_s
    found = collocate(run, job, rules)
    for number, device in replay.devices.items():
        nodes = [
            n for n in range(len(seconds)) if replay.nodes.computes(n) and replay.nodes.instruction(n).device == number
        ]
        several = len({run.layout.skeleton.signatures[replay.nodes.kind(n)[0]].members[0].lane for n in nodes}) > 1
        if not several:
            ours_s, theirs_s = sum(seconds[n] for n in nodes), found.launches[number][:, 2].sum()
            both_s = device.ceiling.foreground * ours_s + device.ceiling.background * theirs_s
            assert both_s <= found.foreground.makespan_s * (1 + 1e-9)


@examples(40)
@given(
    st.lists(st.floats(0.15, 1.0), min_size=1, max_size=4),
    st.sampled_from((1, 2, 4)),
    st.sampled_from((1, 2, 4)),
    st.booleans(),
)
def test_samples_of_both_are_at_most_those_of_the_better_one(shares, ours, theirs, priority):
    """Two jobs of one model together train at most as fast as the better job alone.

    The foreground is counted as if it were never idle.
    """
    model = profile(tuple(shares))
    cluster = replace(CLUSTER, levels=(Level("server", 1, 1e9),))
    run = played(alone(model, cluster, ours), model, 12)
    job = background_of(played(alone(model, cluster, theirs), model), "same")
    found = collocate(run, job, Collocation(priority=priority, launch_s=0.01))
    steady = steady_state(run)
    dense = ours / sum(steady.busy_s.values()) * steady.batches
    assert found.samples_per_s <= max(job.samples_per_s, dense) * (1 + 1e-3)


@given(st.floats(0.01, 1), st.floats(0.01, 1), st.floats(0.01, 1), st.floats(0.01, 1), st.booleans())
def test_rates_stay_below_the_ceiling(mean, its_mean, demand, need, priority):
    """Rates stay below the ceiling for any demands.

    With priority, a launch that begins does not slow the foreground down.
    """
    rules, ceiling = Collocation(priority=priority), Ceiling.of(mean, its_mean)
    share = rules.share(demand, need, ceiling)
    if share > 0:
        ours, theirs = rules.rates(demand, need, share if priority else None, ceiling)
        assert ceiling.foreground * ours + ceiling.background * theirs <= 1 + 1e-9
        assert not priority or ours == pytest.approx(1)
    kept, there = rules.rates(demand, need, need if priority else None, ceiling)
    assert ceiling.foreground * kept + ceiling.background * there <= 1 + 1e-9


def test_a_replay_that_waits_for_nothing_ends_with_the_state():
    """A node that is never released leads at once to an error that names it."""
    run = runs("gpipe")[0]
    replay = BackgroundReplay(run, SHORT, Collocation(), range(2))
    replay.waits[-1] += 1
    with pytest.raises(InternalError, match=r"makes no progress.*in motion: nothing; .* \(node \d+\) waits"):
        replay.run()


def test_a_replay_that_is_held_up_for_ever_ends_with_the_state():
    """Layers without progress lead to an error after the derived bound."""
    run = runs("data_parallel")[0]

    class Greedy(Collocation):
        def rates(self, foreground, background, share, ceiling=None):
            return 0.0, 1.0

        def share(self, foreground, background, ceiling):
            return background

    with pytest.raises(InternalError, match=r"makes no progress.*in motion: forward"):
        BackgroundReplay(run, SHORT, Greedy(), range(2)).run()


def test_on_a_processor_a_small_microbatch_leaves_nothing_of_a_core():
    """A small microbatch leaves no share of a processor core to a background job.

    On a processor, threads are busy for all the extra seconds.
    """
    case = Chain("data_parallel", (1,), 1).case()
    layer = replace(case.costs.profile.layers[0], forward_s=(1.0,) * 4, backward_s=(1.0,) * 4)
    costs = replace(case.costs, profile=replace(case.costs.profile, layers=(layer,)), columns=None)
    found = collocate(play(case.program, costs, 8), Background("job", 1, (Launch(0.1),)), Collocation(), (0,))
    assert (found.slowdown, found.background_samples_per_s) == (1, {0: 0})
