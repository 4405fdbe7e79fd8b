"""Waits for the slowest replica, against random draws.

Formulas are compared with draws, and simulated iterations with runs of drawn seconds.
"""

from dataclasses import replace
from math import pi, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.cost.background.background import Background, Launch
from hocket.cost.contention import Collocation
from hocket.cost.stragglers import slowest, tails
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.predict.predict import played as played_plan
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.analytic.synthetic import chain
from hocket.program.instruction import COLLECTIVES, Kind
from hocket.simulation.background.replay import BackgroundReplay
from hocket.simulation.engine import kernel
from hocket.simulation.engine.arrivals import arrivals
from hocket.simulation.engine.meetings import last_arrival, later
from hocket.simulation.engine.unrolled import Unrolled
from hocket.simulation.simulator import lay_out, play
from hocket.simulation.steady_state import steady_state
from tests.simulation.helpers.chains import Chain
from tests.simulation.helpers.random_runs import mean_iteration_s, varying
from tests.tiers import examples

LINKS = (Level("server", 64, 1e7, 1e-3, shared=False),)
SHARE = 0.06
CHAINS = (
    Chain("data_parallel", (2,), 4, LINKS),
    Chain("data_parallel", (2,), 4, LINKS, layers=4, buckets=True),
    Chain("data_parallel", (4,), 8, LINKS, layers=2, buckets=True),
    Chain("data_parallel", (3,), 7, LINKS),
    Chain("waves", (2,), 8, LINKS),
)
PIPELINES = (
    Chain("flush", (2, 2), 8, LINKS, layers=2, buckets=True),
    Chain("flush", (4, 4), 16, LINKS),
    Chain("interleaved", (2, 2), 8, LINKS, rounds=2),
    Chain("pipedream", (2, 2), 1, LINKS),
)
IDS = [f"{c.strategy}-{'-'.join(map(str, c.widths))}-{c.layers}" for c in (*CHAINS, *PIPELINES)]
DEVIATIONS = st.floats(0.0, 3.0)


@examples(30)
@given(st.floats(-3, 3), DEVIATIONS, DEVIATIONS)
def test_the_later_of_two_is_what_draws_say(apart_s: float, first: float, second: float) -> None:
    """Mean and variance of the later of two normal times are those of draws.

    The order of the two does not matter.
    """
    rng = np.random.default_rng(1)
    drawn = np.maximum(rng.normal(10.0, first, 100_000), rng.normal(10.0 + apart_s, second, 100_000))
    mean, var = later(10.0, first**2, 10.0 + apart_s, second**2, *tails())
    assert mean == pytest.approx(drawn.mean(), abs=0.03)
    assert var == pytest.approx(drawn.var(), rel=0.05, abs=0.03)
    assert later(10.0 + apart_s, second**2, 10.0, first**2, *tails()) == pytest.approx((mean, var), abs=1e-9)
    assert mean >= max(10.0, 10.0 + apart_s)


@examples(20)
@given(st.lists(st.tuples(st.sampled_from((0.0, 0.5, 2.0)), st.sampled_from((0.3, 1.0))), min_size=1, max_size=6))
def test_the_last_of_several_is_what_draws_say(members: list[tuple[float, float]]) -> None:
    """The last of several members is that of draws, and never before the latest mean.

    The tolerance covers the error of merging members two by two.
    """
    members = sorted(members)
    rng = np.random.default_rng(2)
    drawn = np.max([rng.normal(mean, deviation, 40_000) for mean, deviation in members], axis=0)
    ends, spread = [mean for mean, _ in members], [deviation**2 for _, deviation in members]
    numbers = (*slowest(6), *tails())
    found = last_arrival(list(range(len(members))), 1, ends, spread, numbers)
    assert found == pytest.approx(drawn.mean(), abs=0.06)
    assert found >= max(ends)


def test_one_member_may_stand_for_many() -> None:
    """Eight copies of one arrival equal eight equal arrivals."""
    numbers = (*slowest(8), *tails())
    one = last_arrival([0], 8, [1.0], [0.25], numbers)
    assert one == last_arrival(list(range(8)), 1, [1.0] * 8, [0.25] * 8, numbers)
    assert one == pytest.approx(1.0 + 0.5 * slowest(8)[0][8])


@pytest.mark.parametrize("chain", CHAINS, ids=IDS[: len(CHAINS)])
def test_replicas_take_what_drawn_runs_take(chain: Chain) -> None:
    """An iteration takes the mean of runs with drawn seconds, within 0.2 %.

    Only replicas meet in these programs.
    """
    case = chain.case(weights_bytes=1e6)
    mean, expected = play(case.program, case.costs, 16), play(case.program, varying(case, SHARE).costs, 16)
    drawn_s = mean_iteration_s(mean, SHARE)
    assert steady_state(expected).iteration_s == pytest.approx(drawn_s, rel=2e-3)


@pytest.mark.parametrize("chain", PIPELINES, ids=IDS[len(CHAINS) :])
def test_pipelines_of_replicas_come_nearer_to_drawn_runs(chain: Chain) -> None:
    """Predictions of pipelines are nearer to drawn runs than mean seconds, not above.

    Waits for messages are not predicted. Waits for replicas are at least a third of the difference.
    """
    case = chain.case(weights_bytes=1e6)
    mean, expected = play(case.program, case.costs, 16), play(case.program, varying(case, SHARE).costs, 16)
    drawn_s = mean_iteration_s(mean, SHARE)
    before_s, after_s = steady_state(mean).iteration_s, steady_state(expected).iteration_s
    assert before_s < after_s <= drawn_s * 1.002
    assert drawn_s - after_s < 2 / 3 * (drawn_s - before_s)


@pytest.mark.parametrize("r", [2, 4])
def test_an_update_of_replicas_waits_by_order_statistics(r: int) -> None:
    """The wait is the deviation of a replica's sum, times that of the slowest of r."""
    case = Chain("data_parallel", (r,), 2 * r, LINKS).case(forward_s=1.0, backward_s=2.0)
    before, after = (
        steady_state(play(case.program, costs, 8)).iteration_s for costs in (case.costs, varying(case, 0.1).costs)
    )
    deviation_s = sqrt(2 * (0.1**2 + 0.2**2))
    assert after - before == pytest.approx(deviation_s * slowest(r)[0][r])
    if r == 2:
        assert after - before == pytest.approx(deviation_s / sqrt(pi), rel=1e-4)


def test_replicas_of_unlike_pace_wait_for_the_slow_one_alone() -> None:
    """A replica with much more work than the others adds no wait."""
    case = Chain("data_parallel", (3,), 7, LINKS).case()
    before, after = (
        steady_state(play(case.program, costs, 9)).iteration_s for costs in (case.costs, varying(case, 0.05).costs)
    )
    assert after == pytest.approx(before, rel=1e-4)


@given(st.sampled_from((*CHAINS, *PIPELINES)), st.floats(0.001, 0.2), st.floats(1.0, 3.0))
@examples(25)
def test_more_variance_is_never_faster(chain: Chain, share: float, more: float) -> None:
    """With more variance every node ends at the same time or later.

    Without variance the run is the mean run.
    """
    case = chain.case(weights_bytes=1e6)
    none, some, most = (play(case.program, varying(case, s).costs, 6) for s in (0.0, share, share * more))
    assert np.array_equal(none.end_s, play(case.program, case.costs, 6).end_s)
    assert none.late_s.size == 0
    assert (none.end_s <= some.end_s + 1e-9).all()
    assert (some.end_s <= most.end_s * (1 + 1e-6) + 1e-9).all()


@pytest.mark.parametrize("chain", [*CHAINS, *PIPELINES], ids=IDS)
def test_both_kernels_expect_the_same(chain: Chain) -> None:
    """The compiled kernel gives the plain kernel's times, bit by bit."""
    if kernel.compiled() is None:
        pytest.skip("numba is not installed")
    case = varying(chain.case(), SHARE)
    plain, fast = (play(case.program, case.costs, 5, engine=engine) for engine in ("python", "numba"))
    for name in ("start_s", "end_s", "cause", "late_s"):
        assert np.array_equal(getattr(plain, name), getattr(fast, name))


def test_the_kernel_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs with and without variance, and runs that begin with all values on the host, have arguments of one type.

    Numba would compile the kernel once more for other types, which takes seconds.
    """
    typeof = pytest.importorskip("numba").typeof
    types = set()

    def played(*arguments: Any) -> int:
        types.add(str(typeof(arguments)))
        return compiled(*arguments)

    compiled = kernel.compiled()
    assert compiled is not None
    monkeypatch.setattr(kernel, "compiled", lambda: played)
    case = CHAINS[0].case()
    for costs in (case.costs, varying(case, SHARE).costs):
        play(case.program, costs, 5, engine="numba")
    model = chain(4, weights_bytes=100e6, activation_bytes=2e6, microbatch_sizes=(1,), device_type="v100-16gb")
    room = Cluster("one", (Level("server", 2, 10e9),), "v100-16gb", memory_bytes=5e8, host_memory_bytes=9e9)
    swapped = played_plan(search(model, room, PlanRequest(4)).best.plan, model)
    play(swapped.program, swapped.costs, 5, engine="numba")
    assert len(types) == 1


@pytest.mark.parametrize("chain", [*CHAINS, *PIPELINES], ids=IDS)
def test_arrivals_are_the_last_computation_of_each_lane(chain: Chain) -> None:
    """Arrivals are the last compute nodes of each lane before each collective.

    The test follows the edges from the other end.
    """
    case = chain.case()
    layout = lay_out(case.program, 6)
    nodes, lanes = Unrolled(layout, case.costs), layout.skeleton.lanes
    outcome = play(layout, case.costs)
    last: dict[tuple[int, int], int] = {}
    for n in range(layout.nodes):
        one = nodes.instruction(n)
        if one.kind in (Kind.SEND, *COLLECTIVES):
            continue
        for to in nodes.successors(n):
            if nodes.instruction(to).kind in COLLECTIVES:
                key = (to, lanes.index((one.device, one.lane)))
                if key not in last or outcome.end_s[n] >= outcome.end_s[last[key]]:
                    last[key] = n
    pointer, found = arrivals(layout)
    assert {(n, int(k)) for n in range(layout.nodes) for k in found[pointer[n] : pointer[n + 1]]} == {
        (to, n) for (to, _), n in last.items()
    }


def test_a_background_job_leaves_the_waits_as_they_are() -> None:
    """A replay without a background keeps the waits for the slowest replica."""
    case = varying(Chain("data_parallel", (2,), 4, LINKS, layers=4, buckets=True).case(), SHARE)
    outcome = play(case.program, case.costs, 5)
    assert outcome.late_s.max() > 0
    replay = BackgroundReplay(outcome, Background("b", 1, (Launch(1.0, 0.5),)), Collocation(), devices=())
    replay.run()
    assert np.array(replay.end) == pytest.approx(outcome.end_s)


def test_figures_without_deviations_cost_nothing() -> None:
    """A profile without deviations leaves all tables empty."""
    case = Chain("data_parallel", (2,), 4, LINKS).case()
    assert not case.costs.varies
    zero = replace(case.costs.profile, whole_forward_std_s=(0.0,) * 4, whole_backward_std_s=(0.0,) * 4)
    assert not replace(case.costs, profile=zero).varies
