"""Two-level policies: against the public ones, their definition, and figures.

The figures are 5.6, 5.12 and 5.13 of Narayanan's dissertation.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Entity, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.policies import hierarchical, water_filling
from hocket.scheduler.policies.max_min_fairness import equal_share
from hocket.scheduler.solver.dual import large_programs
from hocket.scheduler.solver.water_filling import levels
from tests.scheduler.helpers.filling import EXACT, NEARLY, Plain, crowd, filled
from tests.scheduler.helpers.gavel import references, snapshot
from tests.tiers import examples

seeds = st.integers(0, 2**32 - 1)


def teams(seed: int) -> tuple[Entity, ...]:
    """A few entities, with any weights and policies."""
    rng = np.random.default_rng([seed, 1])
    policies = rng.choice(["fairness", "fifo"], 3)
    return tuple(Entity(f"team {k}", float(rng.integers(1, 4)), str(policies[k])) for k in range(rng.integers(1, 4)))


def agrees(there: Snapshot, reference: dict[str, Any]) -> None:
    """Compare throughputs with the public policy; they are unique.

    The public policy may stop early, when the program that finds its bottlenecks fails. Some workers are then idle
    that jobs could use.
    """
    found = hierarchical.allocate(there)
    steps, told = found.throughput(there), reference["eval"]
    norm = steps / equal_share(there)
    assert found.gap <= EXACT
    used = np.array([told["used"][own.name] for own in there.types])
    more = found.used(there) - used
    if (more > 1e-4 * there.workers).any():
        assert (more >= -EXACT * there.workers).all()
        assert norm.sum() > told["norm_sum"] + 0.1
        return
    head = np.sort(norm * there.scale / there.weights)[:5]
    assert head == pytest.approx(np.array(told["norm_sorted_head"]), rel=0, abs=EXACT)
    assert norm.min() == pytest.approx(told["norm_min"], rel=0, abs=EXACT)
    assert norm.sum() == pytest.approx(told["norm_sum"], rel=EXACT)
    assert steps.sum() == pytest.approx(told["sum_throughput"], rel=EXACT)


@pytest.mark.parametrize("reference", references("wf_perf@fair", 2048), ids=lambda r: r["input"])
def test_fair_entities_are_the_public_ones(reference: dict[str, Any]) -> None:
    """Fair entities: sorted normalized throughputs and sums agree to 1e-6."""
    agrees(snapshot(reference["input"]), reference)


@pytest.mark.parametrize("reference", references("wf_perf@mixed"), ids=lambda r: r["input"])
def test_mixed_entities_are_the_public_ones(reference: dict[str, Any]) -> None:
    """The same if some entities use FIFO."""
    agrees(snapshot(reference["input"], mixed=True), reference)


@pytest.mark.parametrize("reference", references("wf_packed@fair"), ids=lambda r: r["input"])
def test_fair_entities_with_pairs_are_the_public_ones(reference: dict[str, Any]) -> None:
    """The same with all pairs."""
    agrees(snapshot(reference["input"], pairs=True), reference)


STOPPED = "N32_seed2_single.json"  # where the public policy leaves workers idle


def by_definition(there: Snapshot) -> Callable[[np.ndarray], np.ndarray]:
    """Rates of jobs, from the saturated jobs: Narayanan's dissertation, section 5.4.3."""
    own = {entity.name: entity for entity in there.entities}

    def rates(stuck: np.ndarray) -> np.ndarray:
        found = np.zeros(len(stuck))
        for name, entity in own.items():
            mine = [j for j, active in enumerate(there.jobs) if active.job.entity == name and not stuck[j]]
            mine.sort(key=lambda j: there.jobs[j].job.arrived_s)
            if entity.policy == "fifo":
                found[mine[:1]] = entity.weight
            elif mine:
                found[mine] = entity.weight * there.weights[mine] / there.weights[mine].sum()
        return found / there.scale

    return rates


@given(seed=seeds, shared=st.booleans())
@examples(40)
def test_it_is_what_its_definition_says(seed: int, shared: bool) -> None:
    """One program for each job and round gives the same throughputs.

    It has no groups, prices or entering pairs.
    """
    there = crowd(seed, shared=shared, entities=teams(seed))
    found = hierarchical.allocate(there)
    assert found.throughput(there) / equal_share(there) == pytest.approx(
        filled(Plain(there), by_definition(there)), rel=0, abs=NEARLY
    )
    assert found.gap <= EXACT


@pytest.mark.parametrize("seed", range(30))
def test_the_ways_of_large_crowds_are_what_the_definition_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The methods for many jobs agree with the definition, on a few jobs.

    These are leaps, prices instead of programs, and lines with few separate jobs.
    """
    for module, name, value in (
        (large_programs, "MANY", 2), (levels, "MANY", 2), (hierarchical, "MANY", 2), (levels, "_AGAIN", 1), (hierarchical, "_AHEAD", 2),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    there = crowd(seed, count=4 + seed % 9, entities=teams(seed))
    found = hierarchical.allocate(there)
    assert found.throughput(there) / equal_share(there) == pytest.approx(
        filled(Plain(there), by_definition(there)), rel=0, abs=NEARLY
    )
    assert found.gap <= EXACT


def test_a_line_of_alike_jobs_beside_hundreds_of_unlike_ones() -> None:
    """Groups are rebuilt when a line has moved on.

    Prices from before start a program with other bounds.
    """
    rng = np.random.default_rng(0)
    steps = np.vstack([np.exp(rng.uniform(0, 2, (420, 2))), np.tile(np.exp(rng.uniform(0, 2, (3, 2))), (20, 1))])
    names = [*rng.choice(["product", "ops"], 420).tolist(), *["research"] * 60]
    jobs = tuple(Active(Job(f"job {j}", "any", 1.0, 1, float(j), entity=name), 1.0) for j, name in enumerate(names))
    teams = Entity("research", 0.5, "fifo"), Entity("product", 2.0)
    there = Snapshot(
        (WorkerType("a", 80), WorkerType("b", 120)), (Placement(0), Placement(1)), jobs, steps, None, teams
    )
    found = hierarchical.allocate(there)
    assert found.gap <= EXACT
    assert found.used(there) == pytest.approx(there.workers)
    line = found.dense(there)[420:].sum(axis=1)
    assert (line[: np.flatnonzero(line < 1 - EXACT)[0]] >= 1 - EXACT).all()
    assert (line[np.flatnonzero(line < 1 - EXACT)[0] + 1 :] <= EXACT).all()


@pytest.mark.parametrize("mixed", [False, True])
def test_it_is_what_its_definition_says_where_the_public_one_stops(mixed: bool) -> None:
    """The same on a public snapshot where the public policy stops."""
    there = snapshot(STOPPED, mixed=mixed)
    found = hierarchical.allocate(there).throughput(there) / equal_share(there)
    assert found == pytest.approx(filled(Plain(there), by_definition(there)), rel=0, abs=NEARLY)


@given(seed=seeds, shared=st.booleans())
@examples(25)
def test_nobody_gets_more_without_somebody_getting_less(seed: int, shared: bool) -> None:
    """Allocations are Pareto efficient, for any policies of entities."""
    there = crowd(seed, shared=shared, entities=teams(seed))
    plain = Plain(there)
    got = hierarchical.allocate(there).throughput(there) / equal_share(there)
    for job in range(len(there.jobs)):
        assert plain.most(job, got) <= got[job] + NEARLY


@given(seed=seeds, shared=st.booleans())
@examples(25)
def test_groups_that_are_made_anew_change_nothing(seed: int, shared: bool) -> None:
    """Throughputs are the same with only one separate job in each line."""
    there = crowd(seed, count=9, shared=shared, entities=teams(seed))
    whole = hierarchical.allocate(there)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hierarchical, "_AHEAD", 1)
        patch.setattr(hierarchical, "_AHEAD_OF_PAIRS", 1)
        parts = hierarchical.allocate(there)
    assert parts.throughput(there) == pytest.approx(whole.throughput(there), rel=NEARLY, abs=NEARLY)
    assert parts.gap <= EXACT


@given(seed=seeds, shared=st.booleans())
@examples(25)
def test_who_came_first_is_said_by_when_it_came(seed: int, shared: bool) -> None:
    """Each job's throughput is independent of its position in the snapshot."""
    order = np.random.default_rng(seed).permutation(6)
    there, other = (crowd(seed, 6, shared, order=o, entities=teams(seed)) for o in (None, order))
    got, moved = (hierarchical.allocate(one).throughput(one) for one in (there, other))
    assert moved == pytest.approx(got[order], rel=NEARLY, abs=NEARLY)


@given(seed=seeds, shared=st.booleans())
@examples(25)
def test_one_fair_entity_is_water_filling(seed: int, shared: bool) -> None:
    """A single fair entity equals water filling.

    Its weight, name and listing do not matter.
    """
    there = crowd(seed, shared=shared)
    named = crowd(seed, shared=shared, entities=(Entity("team", 7.0),))
    wanted = water_filling.allocate(there).throughput(there)
    for one in (there, named, replace(named, entities=())):
        assert hierarchical.allocate(one).throughput(one) == pytest.approx(wanted, rel=NEARLY)


def cluster(jobs: list[tuple[str, float]], entities: tuple[Entity, ...], workers: int) -> Snapshot:
    """Jobs of entities, given by speed-up, on equally many K80s, P100s and V100s."""
    names = ("k80", "p100", "v100")
    types = tuple(WorkerType(name, workers) for name in names)
    active = tuple(Active(Job(f"job {j}", name, 1.0, entity=name), 1.0) for j, (name, _) in enumerate(jobs))
    steps = np.array([[1.0, np.sqrt(up), up] for _, up in jobs])
    return Snapshot(types, tuple(Placement(k) for k in range(3)), active, steps, None, entities)


def eighteen(policy: str, jobs: int) -> tuple[Snapshot, np.ndarray]:
    """The first jobs of figures 5.12 and 5.13, and their throughputs.

    There are 6 jobs in each team, with weights 1, 2 and 3.
    """
    ups = np.random.default_rng(5).uniform(2, 10, 18)  # V100s over K80s: as in figure 5.1
    entities = tuple(Entity(f"team {k}", k + 1.0, policy) for k in range(3))
    there = cluster([(f"team {j // 6}", float(ups[j])) for j in range(jobs)], entities, 3)
    found = hierarchical.allocate(there)
    assert found.gap <= EXACT
    return there, found.throughput(there) / equal_share(there)


def test_fairness_between_and_inside_of_entities() -> None:
    """Figure 5.12: with all 18 jobs, entities share as 1 : 2 : 3.

    A job that does not run all the time has as much as the others of its entity, however many have arrived.
    """
    _, got = eighteen("fairness", 18)
    parts = got.reshape(3, 6).sum(axis=1)
    assert parts / parts[0] == pytest.approx([1, 2, 3], rel=NEARLY)
    assert got.reshape(3, 6) == pytest.approx(np.repeat(parts / 6, 6).reshape(3, 6), rel=NEARLY)
    for jobs in range(1, 18):
        there, now = eighteen("fairness", jobs)
        time = hierarchical.allocate(there).dense(there).sum(axis=1)
        for k in range(3):
            some = now[6 * k : 6 * k + 6][time[6 * k : 6 * k + 6] < 1 - NEARLY]
            assert some == pytest.approx(np.full(len(some), some.mean() if len(some) else 0.0), rel=NEARLY)
    # Cut into fixed parts of every type by weight, the cluster does less in all.
    fixed = 9 * np.repeat([1, 2, 3], 6) / 36
    assert got.sum() / fixed.sum() > 1.1


def test_fairness_between_entities_and_lines_inside() -> None:
    """Figure 5.13: entities share as 1 : 2 : 3, and lines are served in order.

    The first in each line get all that they can, the last nothing.
    """
    there, got = eighteen("fifo", 18)
    lines = got.reshape(3, 6)
    parts = lines.sum(axis=1)
    assert parts / parts[0] == pytest.approx([1, 2, 3], rel=NEARLY)
    most = (there.throughputs.max(axis=1) / equal_share(there)).reshape(3, 6)
    assert lines[1:, 0] == pytest.approx(most[1:, 0], rel=NEARLY)
    assert (lines[0, 3:] <= EXACT).all()
    served = [int((line > NEARLY).sum()) for line in lines]
    assert served == sorted(served)
    for line in lines:
        assert (np.diff((line > NEARLY).astype(int)) <= 0).all()  # nobody is passed over


def test_weight_goes_to_others_of_the_entity() -> None:
    """Figure 5.6: the share of a saturated job goes to others of its entity.

    In a line, it goes to the next job.
    """
    entities = Entity("product", 1.0), Entity("research", 1.0, "fifo")
    jobs = [("product", 4.0)] * 3 + [("research", 4.0)] * 2
    there = cluster(jobs, entities, 1)
    narrow = there.throughputs.copy()
    narrow[1, 1:] = 0.0  # this one runs on K80s only
    there = replace(there, throughputs=narrow)
    found = hierarchical.allocate(there)
    got = found.throughput(there) / equal_share(there)
    wanted = filled(Plain(there), by_definition(there))
    assert got == pytest.approx(wanted, rel=NEARLY, abs=NEARLY)
    assert got[0] == pytest.approx(got[2], rel=NEARLY)
    assert got[3] >= got[4]
    product, research = got[:3].sum(), got[3:].sum()
    assert product == pytest.approx(research, rel=NEARLY)


def test_a_line_passes_by_who_cannot_run() -> None:
    """Jobs that need more workers than exist are refused and do not block a line."""
    there = cluster([("line", 4.0)] * 3, (Entity("line", 1.0, "fifo"),), 1)
    jobs = tuple(replace(one, job=replace(one.job, scale_factor=9 if j < 2 else 1)) for j, one in enumerate(there.jobs))
    found = hierarchical.allocate(replace(there, jobs=jobs))
    assert set(found.refused) == {0, 1}
    assert found.dense(there)[2].sum() == pytest.approx(1)
    assert found.reasons[2].binding.endswith("it runs all the time")
