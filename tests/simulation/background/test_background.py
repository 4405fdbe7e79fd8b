"""A background job beside a foreground job: no time is lost or gained.

The foreground waits no longer than the rules demand.
"""

from dataclasses import replace

import numpy as np
import pytest

from hocket.cost.background.background import Background, Launch
from hocket.cost.background.device_share import demands, works
from hocket.cost.contention import Collocation
from hocket.errors import InputError
from hocket.hardware.cluster import Level
from hocket.program.instruction import Kind
from hocket.program.trace.chrome import parse_trace, trace_json
from hocket.simulation.background.background import background_of, collocate
from hocket.simulation.background.replay import BackgroundReplay
from hocket.simulation.engine.unrolled import Unrolled
from hocket.simulation.simulator import play
from hocket.simulation.steady_state import steady_state
from tests.simulation.helpers.chains import Chain

SLOW = (Level("server", 64, 1e6),)  # an activation of 1 MB takes a second
GAPS = Collocation(beside=False, collective_slowdown=1.0)
GPU = Chain("data_parallel", (1,), 1, device_type="a100-40gb")
JOB = Background("job", 4, (Launch(0.5, 0.75), Launch(1.0)))


def outcome_of(chain, repeats=8, **figures):
    """A run of a small program."""
    case = chain.case(**figures)
    return play(case.program, case.costs, repeats)


def half_used(outcome, share):
    """Change a run: layers need a share of the device for one sample.

    A layer takes as long for one sample as for 1 / share samples.
    """
    profile = outcome.costs.profile
    size = round(1 / share)
    assert {1, size} <= set(profile.microbatch_sizes)
    layers = tuple(
        replace(
            layer,
            forward_s=tuple(layer.forward_s[0] * max(1, s * share) for s in profile.microbatch_sizes),
            backward_s=tuple(layer.backward_s[0] * max(1, s * share) for s in profile.microbatch_sizes),
        )
        for layer in profile.layers
    )
    costs = replace(outcome.costs, profile=replace(profile, layers=layers), columns=None)
    return play(outcome.program, costs, outcome.repeats)


WIDTHS = {
    "gpipe": (1, 1, 1),
    "flush": (1, 1, 1),
    "data_parallel": (3,),
    "burst_parallel": (4, 2, 1),
    "pipedream": (2, 1),
}
MICROBATCHES = {"data_parallel": 3}


@pytest.fixture(params=WIDTHS)
def strategy(request):
    """A strategy with gaps in its runs."""
    return request.param


@pytest.fixture(params=(2e5, 1e6, 1e30))
def outcome(strategy, request):
    """Run of the strategy on slow, medium or infinitely fast links, not shared.

    Forwards take 0.3 s, so that times are rounded.
    """
    levels = (Level("server", 7, request.param, shared=False),)
    chain = Chain(strategy, WIDTHS[strategy], MICROBATCHES.get(strategy, 4), levels, layers=2)
    return outcome_of(chain, forward_s=0.3)


@pytest.mark.parametrize("launch_s", [0.05, 0.7])
@pytest.mark.thinned(most=2)
def test_a_gap_costs_the_foreground_at_most_one_launch(outcome, launch_s):
    """After a gap, compute waits for at most one launch, and otherwise not at all.

    This holds with priority and without interference.
    """
    found = collocate(outcome, Background.even("job", 1, 1.0), replace(GAPS, launch_s=launch_s))
    after, unrolled = found.foreground, Unrolled(outcome.layout, outcome.costs)
    alone_s, took_s = (run.end_s - run.start_s for run in (outcome, after))
    idle_until: dict[int, float] = {}
    waited = 0
    for n in np.argsort(after.start_s, kind="stable"):
        if not unrolled.computes(n) or alone_s[n] == 0:
            continue
        device = unrolled.instruction(n).device
        gap = after.start_s[n] - idle_until.get(device, 0.0)
        most = launch_s if gap > 1e-9 or device not in idle_until else 0.0
        assert alone_s[n] - 1e-9 <= took_s[n] <= alone_s[n] + most + 1e-9
        waited += took_s[n] > alone_s[n] + 1e-9
        idle_until[device] = after.end_s[n]
    assert after.makespan_s <= outcome.makespan_s + waited * launch_s + 1e-9


def test_what_is_idle_becomes_the_backgrounds(outcome):
    """Very short launches get all idle time, and take none of the foreground's."""
    launch_s = outcome.makespan_s * 1e-3
    found = collocate(outcome, Background.even("job", 1, 1.0), replace(GAPS, launch_s=launch_s))
    gaps = len(outcome.end_s)
    assert found.slowdown == pytest.approx(1, abs=gaps * launch_s / outcome.makespan_s)
    period_s = found.steady[1].period_s
    for device, rate in found.background_samples_per_s.items():
        idle, rest = found.idle.get(device)
        assert rate == pytest.approx(idle, abs=2 * gaps * launch_s / period_s)
        assert rest == pytest.approx(0, abs=1e-6)


def test_without_a_background_nothing_changes(outcome):
    """Without a background job the replay equals the run."""
    replay = BackgroundReplay(outcome, JOB, Collocation(), ())
    replay.run()
    assert replay.start == pytest.approx(outcome.start_s.tolist(), rel=1e-12)
    assert replay.end == pytest.approx(outcome.end_s.tolist(), rel=1e-12)


@pytest.mark.parametrize(
    "rules",
    [
        Collocation(),
        Collocation(beside=False, outstanding=3),
        Collocation(priority=False, outstanding=2),
        Collocation(slowdown_limit=1.2, compute_slowdown=1.1),
    ],
    ids=("beside", "gaps", "no priority", "paused"),
)
@pytest.mark.thinned(most=20)
def test_nobody_makes_time(outcome, rules):
    """A device does at most one second's work a second, and order is kept.

    No job is faster than alone.
    """
    found = collocate(outcome, JOB, rules)
    after, unrolled = found.foreground, Unrolled(outcome.layout, outcome.costs)
    apart = outcome.costs.cluster.levels[0].bandwidth_bytes_per_s == 1e30  # messages do not meet on their links
    for n in range(len(after.end_s)):
        assert not apart or after.start_s[n] >= outcome.start_s[n] - 1e-9
        if not apart and not unrolled.computes(n):
            continue
        assert after.end_s[n] - after.start_s[n] >= (outcome.end_s[n] - outcome.start_s[n]) * (1 - 1e-9)
        assert all(after.start_s[to] >= after.end_s[n] for to in unrolled.successors(n))
    for device, log in found.launches.items():
        assert (log[1:, 0] >= log[:-1, 1]).all()
        assert (log[:, 1] - log[:, 0] >= log[:, 2] * (1 - 1e-9)).all()
        # All layers here need whole devices, the job 5/6 of one on average.
        ours_s = sum((outcome.end_s - outcome.start_s)[n] for n in range(len(after.end_s))
                     if unrolled.computes(n) and unrolled.instruction(n).device == device)  # fmt: skip
        assert ours_s + 0.75 * log[:, 2].sum() <= after.makespan_s * (1 + 1e-9)


def test_beside_a_layer_that_leaves_half_of_the_device():
    """A background that uses the whole device alone gets the foreground's unused half.

    A background that uses no more of it than the foreground gets nothing, because nothing shows that the device can
    do more. The foreground does not wait.
    """
    outcome = half_used(outcome_of(GPU), 0.5)
    for need, pace in ((0.5, 0.0), (0.8, 0.375), (1.0, 0.5)):
        found = collocate(outcome, Background("job", 1, (Launch(0.1, need),)), Collocation())
        assert found.slowdown == pytest.approx(1)
        assert found.background_samples_per_s[0] == pytest.approx(10 * pace, rel=1e-3)


def stepped(layers, launches, rules, step_s):
    """The rules in small steps of time, for one device that always computes.


    Arguments:
        layers: (seconds, demand) of each layer in turn.
        launches: launches of the background, repeated.

    Returns:
        End of the layers, and seconds of work that the background has done by then.
    """
    now, done_s, place, queued, share, left_s = 0.0, 0.0, 0, 0, 0.0, 0.0
    ours, theirs = (sum(s * d for s, d, *_ in job) / sum(s for s, *_ in job) for job in (layers, launches))
    ours, theirs = ours / max(ours, theirs), theirs / max(ours, theirs)
    for seconds, demand in layers:
        while seconds > 1e-12:
            need = launches[place].demand
            if left_s <= 1e-12:
                first = queued == 0
                room = min(need, 1 - demand, need * (1 - ours) / theirs) if rules.priority and first else need
                if not first or room >= min(need, rules.least_share):
                    share, left_s = room, launches[place].seconds
                    queued = rules.outstanding if first else queued
            mine, its = 1.0, 0.0
            if left_s > 1e-12:
                if rules.priority and queued == rules.outstanding:
                    share = max(share, min(need, 1 - demand, need * (1 - ours) / theirs))
                    mine, its = min(1.0, (1 - share) / demand), share / need
                else:
                    mine = its = 1 / max(1.0, demand + need)
                over = max(1.0, ours * mine + theirs * its) * rules.compute_slowdown
                mine, its = mine / over, its / over
            seconds, now = seconds - mine * step_s, now + step_s
            if left_s > 1e-12:
                done_s, left_s = done_s + its * step_s, left_s - its * step_s
                if left_s <= 1e-12:
                    place, queued = (place + 1) % len(launches), queued - 1
    return now, done_s


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_as_the_rules_in_small_steps_of_time(seed):
    """The replay follows the rules, for random layers, launches and ways to share."""
    rng = np.random.default_rng(seed)
    rules = Collocation(bool(seed % 2), True, int(rng.integers(1, 4)), compute_slowdown=(1.0, 1.3)[seed // 2 % 2])
    outcome = outcome_of(replace(GPU, layers=4), 1)
    profile, shares = outcome.costs.profile, rng.choice((0.125, 0.25, 0.5, 1.0), 4)
    sizes = profile.microbatch_sizes
    layers = tuple(
        replace(
            layer,
            forward_s=tuple(float(a) * max(1, size * share) for size in sizes),
            backward_s=tuple(float(b) * max(1, size * share) for size in sizes),
        )
        for layer, share, a, b in zip(profile.layers, shares, *rng.uniform(0.5, 2, (2, 4)).round(2), strict=True)
    )
    costs = replace(outcome.costs, profile=replace(profile, layers=layers), columns=None)
    outcome = play(outcome.program, costs, 1)
    launches = tuple(Launch(*pair) for pair in rng.uniform((0.1, 0.2), (0.9, 1.0), (3, 2)).round(2).tolist())
    found = collocate(outcome, Background("job", 1, launches), rules)
    forward = [(layer.forward_s[0], share) for layer, share in zip(layers, shares, strict=True)]
    backward = [(layer.backward_s[0], share) for layer, share in zip(layers, shares, strict=True)]
    end_s, done_s = stepped(forward + backward[::-1], launches, rules, 1e-4)
    assert found.foreground.makespan_s == pytest.approx(end_s, rel=3e-3)
    assert found.launches[0][:, 2].sum() == pytest.approx(done_s, rel=3e-3)


def test_what_the_foreground_lost_its_time_to():
    """On one device, lost seconds are attributed to the kinds of launches.

    Collectives lose time beside any launch.
    """
    outcome = outcome_of(Chain("data_parallel", (1,), 1))
    job = Background("job", 1, (Launch(0.3, 1.0, "forward"), Launch(0.9, 1.0, "step")))
    found = collocate(outcome, job, Collocation(priority=False))
    assert set(found.lost_s) == {"forward", "step"}
    assert sum(found.lost_s.values()) == pytest.approx(found.foreground.makespan_s - outcome.makespan_s)
    assert found.lost_s["step"] == pytest.approx(3 * found.lost_s["forward"], rel=0.2)
    summing = outcome_of(Chain("data_parallel", (2,), 2, SLOW))
    assert collocate(summing, job).lost_s["collective"] > 0
    assert not collocate(summing, job).room
    assert collocate(summing, JOB).room


def test_without_priority_both_go_on_at_the_same_pace():
    """Two jobs that each need a whole device take twice as long."""
    outcome = outcome_of(Chain("data_parallel", (1,), 1))
    found = collocate(outcome, Background.even("job", 1, 1.0, 0.1), Collocation(priority=False))
    assert found.slowdown == pytest.approx(2)
    assert found.background_samples_per_s[0] == pytest.approx(0.5, rel=0.02)


def test_interference_beyond_shares():
    """Both jobs slow down while they compute at the same time."""
    outcome = half_used(outcome_of(GPU), 0.5)
    found = collocate(outcome, Background("job", 1, (Launch(0.1, 1.0),)), Collocation(compute_slowdown=1.25))
    assert found.slowdown == pytest.approx(1.25)
    assert found.background_samples_per_s[0] == pytest.approx(4, rel=1e-3)


def exposed(slowdown_limit=float("inf")):
    """A data-parallel run with a background job.

    Its all-reduce takes longer than its compute.
    """
    outcome = outcome_of(Chain("data_parallel", (2,), 2, SLOW), weights_bytes=6e6, repeats=12)
    rules = Collocation(beside=False, slowdown_limit=slowdown_limit, launch_s=0.01)
    return outcome, collocate(outcome, Background.even("job", 1, 1.0), rules, devices=(0, 1))


def test_a_collective_takes_twice_as_long_beside_a_background_and_as_long_as_alone_once_that_is_seen():
    """A collective takes twice as long beside a background job, until it is paused.

    See DeepPool, section 5.
    """
    outcome, found = exposed()
    reduce_s = steady_state(outcome).period_s - 3
    assert found.steady[1].period_s == pytest.approx(3 + 2 * reduce_s, rel=0.01)
    _, kept = exposed(slowdown_limit=1.5)
    assert kept.slowdown == pytest.approx(1, abs=0.01)
    signatures = outcome.layout.skeleton.signatures
    assert Kind.ALL_REDUCE in {signatures[s].members[0].kind for s, _, _ in kept.paused}
    assert sum(kept.background_samples_per_s.values()) == pytest.approx(0, abs=0.05)


def test_launches_that_were_given_to_the_device_go_first():
    """The foreground waits for all queued launches."""
    outcome = outcome_of(Chain("gpipe", (1, 1), 1, SLOW))
    rules = replace(GAPS, launch_s=0.1)
    few, many = (collocate(outcome, Background.even("job", 1, 1.0), replace(rules, outstanding=k)) for k in (1, 20))
    assert 1 < few.slowdown < few.slowdown + 0.05 < many.slowdown


def test_devices_that_the_foreground_does_not_use_are_the_backgrounds():
    """Devices that the foreground does not use run only the background job.

    This is a static partition of the cluster.
    """
    chain = Chain("data_parallel", (2,), 2, (Level("server", 4, 1e30),))
    outcome = outcome_of(chain)
    assert outcome.costs.cluster.devices == 4
    found = collocate(outcome, JOB, devices=(2, 3))
    assert found.slowdown == 1
    assert found.background_samples_per_s == {2: JOB.samples_per_s, 3: JOB.samples_per_s}
    assert [round(rest, 9) for _, rest in found.idle.values()] == [0, 0, 0, 0]
    assert found.samples_per_s == pytest.approx(outcome.costs.batch_size / 3 + 2 * 4 / 1.5)


def test_the_trace_shows_both(outcome):
    """The trace survives a round trip through JSON, and shows both jobs.

    Its spans are those of launches, and its events those of the slowed run.
    """
    found = collocate(outcome, JOB, GAPS)
    trace = parse_trace(trace_json(found.trace))
    assert trace == found.trace
    assert trace != found.foreground.trace
    for device, spans in trace.background.items():
        log = found.launches[device]
        assert (np.diff(spans.ravel()) > 0).all()
        assert np.diff(spans).sum() == pytest.approx(np.diff(log[:, :2]).sum(), abs=1e-4)
    assert trace.end == found.foreground.makespan_s
    assert trace.peak_memory_bytes() == outcome.peak_memory_bytes


def test_demands_by_hand():
    """Demand follows from a layer's best size, or from the bytes of its weights."""
    costs = outcome_of(Chain("data_parallel", (1,), 1), weights_bytes=8e9).costs
    profile = costs.profile
    layer = replace(profile.layers[0], forward_s=(1.0, 1.0, 1.0, 2.0), backward_s=(2.0, 2.0, 4.0, 8.0))
    costs = replace(costs, profile=replace(profile, layers=(layer,)), columns=None)
    columns = costs.columns_on(0)
    assert [demands(columns, b, 1e30)[0][0] for b in (1, 2, 4, 8)] == [0.25, 0.5, 1, 1]
    assert [demands(columns, b, 1e30)[1][0] for b in (1, 2, 4)] == [0.5, 1, 1]
    forward, backward = demands(columns, 1, 16e9)  # 8 GB of weights read, as many of gradients written
    assert (forward[0], backward[0]) == (0.5, 0.5)


def test_messages_do_not_use_a_device():
    """The mean share that layers need is that of computing time, however long messages take."""
    slow = (Level("server", 64, 1.0),)
    found = half_used(outcome_of(Chain("gpipe", (1, 1), 2, slow, device_type="a100-40gb"), activation_bytes=3.0), 0.5)
    assert found.makespan_s > 10
    assert Unrolled(found.layout, found.costs).utilization(found) == pytest.approx({0: 0.5, 1: 0.5})


def test_an_instruction_layer_by_layer():
    """Fractions of layers sum to one, and a backward runs from last to first layer.

    Buckets are parts of a backward.
    """
    case = Chain("data_parallel", (2,), 2, layers=3, buckets=True).case(backward_s=(1.0, 2.0, 5.0))
    outcome = play(case.program, case.costs, 2)
    unrolled = Unrolled(outcome.layout, outcome.costs)
    nodes = [n for n in range(len(outcome.end_s)) if unrolled.computes(n) and unrolled.instruction(n).device == 0]
    layers = [[work.layer for work in unrolled.works(n)] for n in nodes[:5]]
    assert layers == [[0, 1, 2], [2], [1], [0], [-1]]
    backward = unrolled.instruction(nodes[1])
    assert [round(w.fraction, 9) for w in works(case.costs, backward, 1)] == [0.625, 0.25, 0.125]


def test_a_run_on_one_device_as_a_background():
    """A background job has the forwards, backwards and steps of a run on one device.

    A ragged batch counts with all its microbatches.
    """
    outcome = outcome_of(Chain("data_parallel", (1,), 2, layers=2, samples=(2, 1)))
    job = background_of(outcome, "mine")
    assert (job.name, job.samples) == ("mine", 3)
    assert job.step_s == pytest.approx(steady_state(outcome).iteration_s)
    assert job.memory_bytes == outcome.peak_memory_bytes[0] > 0
    whole = background_of(outcome_of(Chain("data_parallel", (1,), 2, layers=2, samples=(2, 1)), repeats=1))
    assert (whole.samples, whole.step_s) == (3, pytest.approx(job.step_s))
    short = job.divided(0.3)
    assert short.step_s == pytest.approx(job.step_s)
    assert max(one.seconds for one in short.launches) <= 0.3
    with pytest.raises(InputError, match="2 devices"):
        background_of(outcome_of(Chain("gpipe", (1, 1), 1)))


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (lambda: Collocation(collective_slowdown=0.5), "collective_slowdown"),
        (lambda: Collocation(outstanding=0), "outstanding"),
        (lambda: Collocation(launch_s=0), "launch_s"),
        (lambda: Collocation(least_share=0), "least_share"),
        (lambda: Background("job", 0, JOB.launches), "samples"),
        (lambda: Background("job", 1, ()), "launches"),
        (lambda: Background("job", 1, (Launch(1.0, 1.5),)), "demand"),
        (lambda: collocate(outcome_of(Chain("gpipe", (1, 1), 1)), JOB, devices=(64,)), "devices"),
    ],
)
def test_what_is_refused(wrong, match):
    """Invalid arguments are refused by name."""
    with pytest.raises(InputError, match=match):
        wrong()
