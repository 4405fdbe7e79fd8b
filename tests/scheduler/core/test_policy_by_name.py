"""Policies by name, and the time of heterogeneity-agnostic ones."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hocket.errors import InputError
from hocket.scheduler.core.core import Policy
from hocket.scheduler.core.fifo_baseline import FirstCome
from hocket.scheduler.core.heterogeneity_agnostic import evenly
from hocket.scheduler.core.policy_by_name import as_published, policy_named
from hocket.scheduler.model.allocation import ALONE, Allocation
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Pairs, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.policies.gandiva import pairs_of
from hocket.scheduler.readers.throughputs_json import packaged
from hocket.scheduler.simulation.metrics import jct_s
from hocket.scheduler.simulation.simulator import simulate
from hocket.scheduler.simulation.simulator_options import SimulatorOptions, public
from hocket.scheduler.simulation.trace_generator import Draws, continuous


def snapshot(steps: list[list[float]], scales: list[int] | None = None) -> Snapshot:
    """Two workers of one type, six of another, and a spread column of the second."""
    scales = scales or [1] * len(steps)
    jobs = tuple(Active(Job(str(k), "m", 9.0, s), 9.0) for k, s in enumerate(scales))
    types = WorkerType("fast", 2), WorkerType("slow", 6, 2)
    return Snapshot(types, (Placement(0), Placement(1), Placement(1, False)), jobs, np.array(steps))


def test_who_sees_no_types_spends_its_time_on_all_of_them() -> None:
    """Four jobs on eight workers run all the time, a quarter of it on fast workers.

    Types where a job cannot run are left out.
    """
    there = snapshot([[9.0, 1.0, 1.0]] * 3 + [[0.0, 1.0, 1.0]])
    all_on_one = Allocation(np.arange(4), np.full(4, ALONE), np.array([0, 0, 1, 1]), np.ones(4), 1.0)
    assert evenly(all_on_one, there).dense(there).tolist() == [[0.25, 0.75, 0.0]] * 3 + [[0.0, 1.0, 0.0]]


def test_what_an_objective_leaves_goes_to_whom_it_adds_most_but_not_under_max_min_fairness() -> None:
    """Spare capacity goes where it adds most, except under max-min fairness.

    The second job is equally fast everywhere and can have no more than its share. The first has its share in a
    quarter of the time.
    """
    there = snapshot([[9.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    for name, first in (("makespan", 9.0), ("finish_time_fairness", 9.0), ("max_min_fairness", 2.25)):
        found = policy_named(name)(there).throughput(there)
        assert found == pytest.approx([first, 1.0]), name


def test_time_is_spread_as_far_as_there_are_workers() -> None:
    """Time is spread only as far as workers exist.

    A job that runs only on slow workers is beside a job on two of four workers.
    """
    there = snapshot([[1.0, 0.0, 0.0]] * 3 + [[4.0, 4.0, 4.0]], [1, 1, 1, 4])
    found = evenly(policy_named("max_min_fairness", blind=True)(there), there)
    assert (found.used(there) <= there.workers + 1e-9).all()
    assert (found.dense(there)[:3, 1:] == 0).all()
    assert found.dense(there)[3, 0] == 0


def test_each_policy_has_a_memory_of_its_own() -> None:
    """Two policies of one name do not influence each other."""
    one, other = policy_named("max_min_fairness"), policy_named("max_min_fairness")
    there = snapshot([[9.0, 1.0, 1.0]] * 12)
    one(snapshot([[1.0, 5.0, 5.0]] * 20))
    assert one(there).objective == pytest.approx(other(there).objective)


def test_a_policy_that_is_none_is_refused() -> None:
    """An unknown policy is refused, with the nearest name."""
    with pytest.raises(InputError, match=r"policy: found 'fifos'.*Did you mean 'fifo'"):
        policy_named("fifos")


def test_who_is_placed_by_allox_stays() -> None:
    """A job that AlloX placed stays.

    The first job takes the fast worker. A later job, which would gain more there, has to wait for it.
    """
    types = WorkerType("fast", 1), WorkerType("slow", 1)
    jobs = tuple(Active(Job(name, "m", 9.0), 9.0) for name in "ab")
    allocate = policy_named("allox")
    both = Snapshot(types, (Placement(0), Placement(1)), jobs, np.array([[2.0, 1.9], [9.0, 0.5]]))
    assert policy_named("allox")(both).dense(both)[0, 0] == 0.0
    alone = Snapshot(types, both.columns, jobs[:1], both.throughputs[:1])
    assert allocate(alone).dense(alone)[0].tolist() == [1.0, 0.0]
    assert allocate(both).dense(both)[0].tolist() == [1.0, 0.0]


def test_pairs_of_gandiva_stay_together() -> None:
    """Gandiva's pairs stay together although each call draws again.

    A policy with another memory draws other pairs.
    """
    jobs = tuple(Active(Job(str(k), "m", 9.0), 9.0) for k in range(12))
    pairs = Pairs(np.zeros(12, dtype=int), np.full((1, 1, 1), 0.8))
    there = Snapshot((WorkerType("fast", 2),), (Placement(0),), jobs, np.ones((12, 1)), pairs)
    fewer = Snapshot(there.types, there.columns, jobs[2:], np.ones((10, 1)), Pairs(np.zeros(10, dtype=int), pairs.kept))
    allocate = policy_named("gandiva")
    before = set(pairs_of(there, allocate(there)))
    after = set(pairs_of(fewer, allocate(fewer)))
    assert {pair for pair in before if not set(pair) & {"0", "1"}} <= after
    assert set(pairs_of(fewer, policy_named("gandiva")(fewer))) != after


def test_what_an_objective_leaves_open() -> None:
    """Options for spare capacity: two jobs, two fast workers and six slow ones.

    The fast workers go to the jobs that gain most, or both jobs get a part of all workers.
    """
    there = snapshot([[9.0, 1.0, 0.0], [9.0, 1.0, 0.0]])
    most = policy_named("finish_time_fairness")(there)
    middle = policy_named("finish_time_fairness", rest="middle")(there)
    assert most.dense(there)[:, 0].tolist() == pytest.approx([1.0, 1.0])
    assert middle.objective == most.objective
    there = snapshot([[9.0, 1.0, 0.0]] * 2 + [[0.1, 0.1, 0.0]])
    most, middle = (policy_named("makespan", rest=rest)(there) for rest in ("most", "middle"))  # type: ignore[arg-type]
    assert most.dense(there)[:2, 0].tolist() == pytest.approx([1.0, 1.0])
    assert (middle.dense(there)[:2, :2] > 0.05).all()


JOBS = 12


def first_come() -> tuple[Policy, SimulatorOptions]:
    """The public FIFO, as in bench/bench_cluster_simulator.py."""
    options = public(blind=True)
    return FirstCome(overbook=True), replace(options, settings=replace(options.settings, fill=False))


@pytest.mark.parametrize(
    ("name", "blind", "by_hand"),
    [
        ("fifo", True, first_come),
        pytest.param(
            "max_min_fairness",
            True,
            lambda: (policy_named("max_min_fairness", blind=True), public(blind=True)),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "max_min_fairness",
            False,
            lambda: (policy_named("max_min_fairness", rest="middle"), public()),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "finish_time_fairness",
            False,
            lambda: (policy_named("finish_time_fairness", rest="middle"), public()),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "makespan", True, lambda: (policy_named("makespan", blind=True), public(blind=True)), marks=pytest.mark.slow
        ),
        ("isolated", False, lambda: (policy_named("isolated"), public(blind=True))),
        ("allox", False, lambda: (policy_named("allox", rest="middle"), public())),
    ],
)
@pytest.mark.thinned(most=1)
def test_a_published_policy_is_what_is_laid_beside_the_public_simulator(
    name: str, blind: bool, by_hand: Callable[[], tuple[Policy, SimulatorOptions]]
) -> None:
    """`as_published` gives each job the JCT of a hand-made configuration.

    Our default options give other JCTs.
    """
    work = continuous(packaged(), JOBS, 8.0, 0, Draws(multiple=name != "allox"))
    types = tuple(WorkerType(kind, 8) for kind in ("v100", "p100", "k80"))

    def times_s(policy: Policy, options: SimulatorOptions) -> list[float]:
        found: list[float] = jct_s(simulate(work, types, packaged(), policy, options).records).tolist()
        return found

    found = times_s(*as_published(name, blind))
    assert len(found) == JOBS
    assert found == times_s(*by_hand())
    assert found != times_s(policy_named(name, blind), SimulatorOptions())
