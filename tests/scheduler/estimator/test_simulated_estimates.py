"""Sharing throughputs in a simulation: estimates first, then measured values."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from hocket.errors import InputError
from hocket.scheduler.core.events import SharingMeasured
from hocket.scheduler.core.policy_by_name import policy_named
from hocket.scheduler.core.settings import Settings
from hocket.scheduler.estimator.simulated_estimates import Estimating, Learner, profiled
from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.model.worker_types import ClusterSpec, WorkerType
from hocket.scheduler.readers.throughputs_json import packaged
from hocket.scheduler.simulation.metrics import ClusterRun, summary
from hocket.scheduler.simulation.simulator import simulate
from hocket.scheduler.simulation.simulator_options import SimulatorOptions
from hocket.scheduler.simulation.trace_generator import continuous

TYPES = tuple(WorkerType(name, 2, 2) for name in ("v100", "k80"))
CLUSTER = ClusterSpec(TYPES, packaged().columns(TYPES))


@cache
def before(references: int = 8, pairs: int = 2) -> Learner:
    """A learner without measurements in rounds; not to be modified."""
    return Learner(packaged(), CLUSTER, Estimating(references, pairs))


def new_rows(learner: Learner) -> list[int]:
    """Kinds of one worker that are not reference jobs."""
    truth, known = learner.truth, learner.estimator.reference.row
    return [row for row, kind in enumerate(truth.kinds) if kind not in known]


def did(row: int, beside: int, column: int) -> tuple[int, int, int, tuple[float, float]]:
    """The true value."""
    truth = packaged()
    place = truth.places_of(CLUSTER)[column]
    return row, beside, column, (float(truth.beside[row, beside, place]), float(truth.beside[beside, row, place]))


def test_reference_jobs_are_known_and_others_are_profiled() -> None:
    """The given numbers of kinds and pairs are drawn and measured.

    Pairs are with reference jobs, and have their true values.
    """
    found = profiled(packaged(), Estimating(8, 2, seed=3))
    sharing = [k for k, _ in enumerate(packaged().kinds) if packaged().beside[k].any()]
    assert len(found.new) == len(sharing) - 8
    assert len(found.measured) == 2 * len(found.new)
    for one in found.measured:
        assert one.second in found.reference.row
        a, b, c = packaged().row[one.first], packaged().row[one.second], packaged().column[one.place]
        assert (one.first_steps_per_s, one.second_steps_per_s) == (
            packaged().beside[a, b, c],
            packaged().beside[b, a, c],
        )
    other = profiled(packaged(), Estimating(8, 2, seed=4))
    assert {kind for kind, _ in other.new} != {kind for kind, _ in found.new}


def test_reference_jobs_beside_each_other_are_as_they_are() -> None:
    """The table is true for reference jobs.

    It is true everywhere if all jobs are reference jobs.
    """
    learner = before()
    known = [row for row, kind in enumerate(learner.truth.kinds) if kind in learner.estimator.reference.row]
    at = np.ix_(known, known)
    assert np.allclose(learner.known.kept[at], learner.truth.kept[at])
    assert learner.error(learner.known, new_rows(learner)) > 0.03
    everything = Learner(packaged(), CLUSTER, Estimating(26, 0))
    assert np.allclose(everything.known.kept, packaged().kept)


def test_rounds_put_estimates_right_and_others_with_them() -> None:
    """Pairs that ran become exact, and other estimates improve.

    A pair that ran before gives no new information.
    """
    learner = Learner(packaged(), CLUSTER, Estimating(8, 0))
    rows = new_rows(learner)
    others = [r for r in rows if r != rows[0]]
    beside = [learner.truth.row[kind] for kind in learner.estimator.reference.kinds if kind[1] == 1]
    ran = [did(rows[0], b, c) for b in beside[:6] for c in (0, 1)]
    mine = np.ix_([rows[0]], beside[6:], sorted({learner.truth.places_of(CLUSTER)[c] for c in (0, 1)}))
    was = np.abs(learner.known.kept[mine] - learner.truth.kept[mine]).mean()
    events = learner.learn(ran)
    assert len(learner.measured) == 12
    for a, b, c, _ in ran:
        place = learner.truth.places_of(CLUSTER)[c]
        assert learner.known.kept[a, b, place] == pytest.approx(learner.truth.kept[a, b, place])
    assert np.abs(learner.known.kept[mine] - learner.truth.kept[mine]).mean() < was
    assert any({e.sharing, e.beside} == {rows[0], others[0]} for e in events)  # never ran, thought of anew
    assert learner.learn(ran) == []
    assert learner.learn([did(b, a, c) for a, b, c, _ in ran]) == []


def test_events_say_all_that_changed() -> None:
    """The first table and all events together give the last table.

    Its columns are those of the cluster.
    """
    learner = Learner(packaged(), CLUSTER, Estimating(8, 1))
    at = learner.truth.places_of(CLUSTER)
    told = learner.first.kept[:, :, at].copy()
    rows = new_rows(learner)
    for a, b in pairwise(rows):
        for event in learner.learn([did(a, b, 0)]):
            assert isinstance(event, SharingMeasured)
            told[event.sharing, event.beside, event.column] = event.kept
            told[event.beside, event.sharing, event.column] = event.kept_beside
    assert np.allclose(told, learner.known.kept[:, :, at], atol=1e-8)


def run(estimating: Estimating | None, sharing: bool = True) -> tuple[ClusterRun, list[Snapshot]]:
    """34 jobs on four workers, and the snapshots of the policy."""
    seen: list[Snapshot] = []
    policy = policy_named("max_min_fairness")

    def asked(snapshot: Snapshot) -> Allocation:
        seen.append(snapshot)
        return policy(snapshot)

    work = continuous(packaged(), 34, 0.6, 0)
    options = SimulatorOptions(Settings(), sharing, estimating=estimating)
    return simulate(work, TYPES, packaged(), asked, options), seen


def wrong(snapshot: Snapshot) -> float:
    """Error of the pair throughputs in snapshots."""
    assert snapshot.pairs is not None
    at = packaged().places_of(CLUSTER)
    return float(np.abs(snapshot.pairs.kept[:-1, :-1] - packaged().kept[:, :, at]).mean())


@pytest.mark.slow
def test_policies_see_estimates_that_rounds_refine_and_jobs_do_what_is_true() -> None:
    """Policies see estimates that improve; jobs run at true throughputs.

    The average JCT is between that with known throughputs and that without sharing. The run reports the error of
    the estimates, and two runs are identical.
    """
    found, seen = run(Estimating(8, 2))
    assert wrong(seen[0]) > 0.01
    assert wrong(seen[-1]) < 0.9 * wrong(seen[0])
    assert any("the mean error of estimated throughput shares" in note for note in found.notes)
    for record in found.records:
        assert record.finished_s is not None
        assert record.finished_s - record.job.arrived_s >= record.job.steps / max(record.throughputs) * (1 - 1e-9)
    jct = summary(found).avg_jct_s
    assert summary(run(None)[0]).avg_jct_s * 0.98 < jct < summary(run(None, sharing=False)[0]).avg_jct_s
    assert run(Estimating(8, 2))[0].records == found.records


@pytest.mark.slow
def test_without_refining_nothing_is_learned() -> None:
    """Without refinement, policies keep the initial estimates."""
    _, seen = run(Estimating(8, 2, refine=False))
    assert wrong(seen[-1]) == wrong(seen[0]) > 0


def test_what_makes_no_sense_is_refused() -> None:
    """Numbers below one, and estimates without space sharing, are refused."""
    with pytest.raises(InputError, match="estimating: references"):
        Estimating(0)
    with pytest.raises(InputError, match="estimating: pairs"):
        Estimating(3, -1)
    with pytest.raises(InputError, match="options: estimating: found no space sharing; expected space sharing"):
        run(Estimating(), sharing=False)
