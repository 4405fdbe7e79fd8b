"""Rounds: received time follows the allocation within a constant; hand-made cases."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.scheduler.model.allocation import ALONE
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.policies import max_min_fairness
from hocket.scheduler.rounds import priorities as rounds
from hocket.scheduler.rounds.priorities import (
    Entries,
    balanced,
    by_debt,
    by_ratio,
    choose,
    choose_by_type,
    enough,
    worth,
)
from tests.scheduler.helpers.drive import Driver, driver, fixed

LARGE = [1, 1, 1, 2, 2, 4, 4, 8, 8]


def entries(rows: list[tuple[int, int, int, int, float]], jobs: int) -> Entries:
    """Entries from (first, second, column, need, fraction); each column is a type."""
    first, second, column, need, fraction = (np.array(one) for one in zip(*rows, strict=True))
    return Entries(first, second, column, column, need, fraction.astype(float), jobs)


@given(st.integers(0, 10**6), st.integers(1, 8))
def test_who_is_left_out_early_could_not_run(seed: int, at_once: int) -> None:
    """Filtering infeasible entries early does not change the selection."""
    rng = np.random.default_rng(seed)
    jobs, count = int(rng.integers(2, 12)), int(rng.integers(1, 60))
    first = rng.integers(0, jobs, count)
    second = np.where(rng.random(count) < 0.5, ALONE, (first + rng.integers(1, jobs, count)) % jobs)
    column = rng.integers(0, 3, count)
    there = Entries(first, second, column, column, rng.integers(1, 4, count), np.ones(count), jobs)
    order, workers = rng.permutation(count), rng.integers(0, 7, 3).tolist()
    whole = choose(there, order, workers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "_AT_ONCE", at_once)
        assert choose(there, order, workers).tolist() == whole.tolist()


def test_a_key_is_of_jobs_and_column() -> None:
    """Keys are equal only for equal jobs and columns."""
    rows = [(a, b, c) for a in (0, 1, 70_000) for b in (ALONE, 0, 1, 70_000) for c in (0, 1, 60)]
    there = entries([(*row, 1, 1.0) for row in rows], 70_001)
    assert len(set(there.key.tolist())) == len(rows)


def test_keys_of_many_columns_differ() -> None:
    """Keys stay unique with many columns and slots."""
    there = [(a, b, column) for a in (0, 1, 2**20) for b in (ALONE, 0, 1, 2**20) for column in (0, 1023, 1024, 65535)]
    first, second, column = np.array(there, dtype=np.int64).T
    ones = np.ones(len(there), dtype=np.int64)
    found = Entries(first, second, column, column, ones, ones.astype(float), 2**20 + 1).key
    assert len(set(found.tolist())) == len(there)
    assert found.min() >= 0


def lag(drive: Driver, fractions: dict[tuple[tuple[str, ...], int], float]) -> float:
    """Largest number of rounds by which received time is below fraction * time."""
    each = (x * drive.now_s - drive.time_s.get(key, 0.0) for key, x in fractions.items())
    return max(each) / drive.core.settings.round_s


def start(drive: Driver, scales: list[int]) -> None:
    """A core with jobs of these scale factors that run everywhere and never end."""
    for k, scale in enumerate(scales):
        drive.arrive([(Job(str(k), "any", 1e12, scale), (1.0,) * len(drive.core.columns))])


def run(
    workers: tuple[int, ...],
    scales: list[int],
    rows: list[tuple[int, int, int, float]],
    rounds: tuple[int, ...],
    **kw: Any,
) -> list[float]:
    """Lag after a number of rounds, without gifts.

    Entries are (first, second, column, fraction).
    """
    first, second, column, fraction = zip(*rows, strict=True)
    drive = driver(workers, fixed(first, second, column, fraction), fill=False, **kw)
    start(drive, scales)
    keys = [((str(a),) if b == ALONE else (str(a), str(b)), c) for a, b, c, _ in rows]
    found = []
    for more in np.diff([0, *rounds]).tolist():
        drive.rounds(more)
        found.append(lag(drive, dict(zip(keys, fraction, strict=True))))
    return found


def mixture(
    seed: int, workers: tuple[int, ...], scales: list[int], pairs: bool, parts: int
) -> list[tuple[int, int, int, float]]:
    """A feasible allocation: the mean of some rounds without conflicts."""
    rng = np.random.default_rng(seed)
    weight = rng.dirichlet(np.ones(parts))
    found: dict[tuple[int, int, int], float] = {}
    for part in weight.tolist():
        free = list(workers)
        waiting = rng.permutation(len(scales)).tolist()
        while waiting:
            a, b = waiting.pop(), ALONE
            alike = [j for j in waiting if scales[j] == scales[a]]
            if pairs and alike and rng.random() < 0.5:
                b = alike[0]
                waiting.remove(b)
            fits = [k for k in range(len(free)) if free[k] >= scales[a]]
            if fits:
                k = int(rng.choice(fits))
                free[k] -= scales[a]
                low, high = (a, b) if b == ALONE else (min(a, b), max(a, b))
                found[low, high, k] = found.get((low, high, k), 0.0) + part
    return [(*key, x) for key, x in sorted(found.items())]


@pytest.mark.parametrize("queue", ["global", "types"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.thinned(most=1)
def test_jobs_of_one_worker_get_their_fractions_within_a_constant(seed: int, queue: str) -> None:
    """X * time - received <= 4 rounds after 100, 400 and 800 rounds.

    This holds for every job and type.
    """
    rows = mixture(seed, (3, 3, 2), [1] * 12, pairs=False, parts=6)
    assert max(run((3, 3, 2), [1] * 12, rows, (100, 400, 800), queue=queue)) <= 4.0


@pytest.mark.parametrize("order", ["ratio", "deficit"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.thinned(most=1)
def test_large_jobs_get_their_fractions_within_a_constant(seed: int, order: str) -> None:
    """With scale factors 1 to 8 on three types, no job lags by more than 10 rounds.

    This is independent of the number of rounds.
    """
    rows = mixture(seed, (8, 8, 8), LARGE, pairs=False, parts=6)
    assert max(run((8, 8, 8), LARGE, rows, (50, 100, 200), order=order)) <= 10.0


@pytest.mark.parametrize("seed", range(2))
def test_pairs_get_their_fractions_within_a_constant(seed: int) -> None:
    """With space sharing, no pair lags by more than 10 rounds."""
    scales = [1, 1, 1, 1, 1, 2, 2, 2]
    rows = mixture(seed, (3, 2), scales, pairs=True, parts=5)
    assert max(run((3, 2), scales, rows, (50, 100, 200, 400))) <= 10.0


def test_whatever_can_be_kept_is_worth_its_allocation_in_each_round() -> None:
    """No search fails if an allocation is a mean of possible rounds.

    The constant bound depends on this: no search is postponed.
    """
    for seed in range(3):
        rows = mixture(seed, (4, 4), [1, 1, 2, 2, 4, 4], pairs=True, parts=4)
        first, second, column, fraction = zip(*rows, strict=True)
        drive = driver((4, 4), fixed(first, second, column, fraction), fill=False, balance_after=0.0)
        start(drive, [1, 1, 2, 2, 4, 4])
        drive.rounds(100)
        assert drive.core.choice.search_every == 1


def test_a_full_allocation_is_received_from_above_as_well() -> None:
    """With a full allocation, no job is ahead by more than a constant, either."""
    first, fraction = [0, 1, 2, 3], [0.9, 0.6, 0.4, 0.1]
    drive = driver((2,), fixed(first, [ALONE] * 4, [0] * 4, fraction))
    start(drive, [1] * 4)
    for _ in range(20):
        drive.rounds(25)
        for job, x in zip("0123", fraction, strict=True):
            assert abs(drive.time_s[(job,), 0] - x * drive.now_s) <= 360


def test_the_greedy_order_alone_lets_large_jobs_fall_behind_for_ever() -> None:
    """By X / f alone, type after type, the lag grows with the number of rounds.

    The balance check prevents this.
    """
    rows = mixture(0, (8, 8, 8), LARGE, pairs=False, parts=6)
    once, twice = run((8, 8, 8), LARGE, rows, (200, 400), queue="types", balance_after=None)
    assert twice > 1.8 * once > 60


def one_type(fractions: list[float], workers: int, rounds: int) -> list[float]:
    """Received time minus X times rounds, by job, after each round.

    The order is X / f alone.
    """
    jobs = len(fractions)
    every = entries([(j, ALONE, 0, 1, x) for j, x in enumerate(fractions)], jobs)
    received, worst = np.full(jobs, 0.5), []
    for r in range(1, rounds + 1):
        chosen = choose(every, by_ratio(every, received, np.zeros(jobs)), [workers])
        received[chosen] += 1
        worst.append(float(np.abs(received - 0.5 - every.fraction * r).max()))
    return worst


@given(st.lists(st.integers(1, 20), min_size=2, max_size=12))
def test_one_worker_is_shared_by_the_ratio_alone_within_the_proved_bound(shares: list[int]) -> None:
    """On one worker |received - X * rounds| <= (1 + X * jobs) / 2.

    Let L be the ratio (t + 1/2) / X of the last choice: the smallest there was, and the smallest never falls. So
    any job ever chosen had t - 1/2 <= L X then, and no job has (t + 1/2) / X < L now: t is within 1/2 of L X. Sums
    over the jobs, for which t gives the rounds and X gives 1, put L within jobs / 2 of the rounds.
    """
    fractions = np.array(shares) / sum(shares)
    bound = float((1 + fractions.max() * len(shares)) / 2)
    assert max(one_type(fractions.tolist(), 1, 200)) <= bound + 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_a_policys_answer_is_kept(seed: int) -> None:
    """Max-min fairness for 40 single-worker jobs on three types: a lag below 2 rounds.

    It is checked after 300 rounds.
    """
    rng = np.random.default_rng(seed)
    drive = driver((8, 8, 8), max_min_fairness.allocate, fill=False)
    steps = rng.random((40, 3)) + 0.05
    jobs = [Job(str(k), "any", 1e12) for k in range(40)]
    drive.arrive(zip(jobs, map(tuple, steps.tolist()), strict=True))
    drive.rounds(300)
    types = tuple(WorkerType(f"type{k}", 8) for k in range(3))
    columns = tuple(Placement(k) for k in range(3))
    found = max_min_fairness.allocate(Snapshot(types, columns, tuple(Active(job, 1e12) for job in jobs), steps))
    rows = zip(found.first.tolist(), found.column.tolist(), found.fraction.tolist(), strict=True)
    assert lag(drive, {((str(j),), c): x for j, c, x in rows}) <= 2.0


def test_what_cannot_be_kept_starves_nobody() -> None:
    """Two jobs of two workers, each for 3/4 of the time on three workers, take turns.

    A round has room for one.
    """
    drive = driver((3,), fixed((0, 1), (ALONE, ALONE), (0, 0), (0.75, 0.75)), fill=False)
    start(drive, [2, 2])
    drive.rounds(301)
    assert [drive.time_s[(name,), 0] / 360 for name in ("0", "1")] == [150, 150]


@pytest.mark.parametrize("order", ["ratio", "deficit"])
def test_of_what_cannot_be_kept_everybody_has_a_part(order: str) -> None:
    """Jobs of two workers on three, for 0.7, 0.7 and 0.1 of the time.

    With room for one, each has two thirds of its fraction. By owed time alone, the last one would wait until the
    faster-growing debts of the others are capped: a thousand rounds.
    """
    drive = driver((3,), fixed((0, 1, 2), (ALONE,) * 3, (0, 0, 0), (0.7, 0.7, 0.1)), fill=False, order=order)
    start(drive, [2, 2, 2])
    waits = 0
    for _ in range(10):
        before = drive.time_s.get((("2",), 0), 0.0)
        drive.rounds(40)
        waits += drive.time_s.get((("2",), 0), 0.0) == before
    assert waits == 0
    had = np.array([drive.time_s[(name,), 0] / 360 for name in "012"])
    assert had == pytest.approx(np.array([0.7, 0.7, 0.1]) / 1.5 * 400, abs=10)


@pytest.mark.parametrize("order", ["ratio", "deficit"])
def test_a_large_job_with_a_small_fraction_is_served_though_allocations_change_all_the_time(order: str) -> None:
    """A job of 8 workers with X = 1/10 never waits long, despite changing allocations.

    30 single-worker jobs come and go each round. The large job's owed time grows by a tenth of a round each round.
    After two rounds it is owed most, so 30 rounds are a bound.
    """
    count = 30
    first, fraction = [*range(count), "big"], [*[0.2 * 8 / count * 4.5] * count, 0.1]
    policy = fixed(first, [ALONE] * (count + 1), [0] * (count + 1), fraction)
    drive = driver((8,), policy, order=order)
    start(drive, [1] * count)
    drive.arrive([(Job("big", "any", 1e12, 8), (1.0,))])
    waits, since = [], 0
    for k in range(300):
        drive.rounds(1)
        drive.finish(str(k % count))
        drive.arrive([(Job(str(k % count), "any", 1e12), (1.0,))])
        since = 0 if any(lease.jobs == ("big",) for lease in drive.held.values()) else since + 1
        waits.append(since)
    assert max(waits) <= 30


def test_conflicting_pairs_are_left_out() -> None:
    """A chosen pair excludes entries that share a job with it.

    The next free entry follows: figure 5.7 of Narayanan's dissertation.
    """
    every = entries([(0, 1, 0, 1, 0.9), (0, ALONE, 1, 1, 0.8), (1, 2, 1, 1, 0.7), (2, ALONE, 1, 1, 0.1)], 3)
    order = by_ratio(every, np.ones(4), np.zeros(4))
    assert choose(every, order, [1, 1]).tolist() == [0, 3]


def test_whoever_does_not_fit_is_passed_over() -> None:
    """Algorithm 2, line 7: a job that does not fit waits, and smaller ones pass it."""
    every = entries([(0, ALONE, 0, 3, 0.9), (1, ALONE, 0, 2, 0.8), (2, ALONE, 0, 1, 0.1)], 3)
    assert choose(every, np.arange(3), [4]).tolist() == [0, 2]


def test_priority_is_the_fraction_by_what_was_received() -> None:
    """The published example: the entry with the least of its fraction comes first.

    Ties go to owed time, then to the earliest arrival.
    """
    every = entries([(0, ALONE, 0, 1, 0.6), (1, ALONE, 0, 1, 0.4), (2, ALONE, 0, 1, 0.4), (3, ALONE, 0, 1, 0.0)], 4)
    assert by_ratio(every, np.array([3.0, 1.0, 1.0, 1.0]), np.zeros(4)).tolist() == [1, 2, 0, 3]
    assert by_ratio(every, np.array([3.0, 1.0, 1.0, 1.0]), np.array([0, 0, 5.0, 0])).tolist() == [2, 1, 0, 3]


def test_types_have_their_own_queues() -> None:
    """Queues of types are served whole, in the given order.

    This includes jobs without a claim.
    """
    every = entries([(0, ALONE, 0, 1, 0.2), (1, ALONE, 1, 1, 0.9), (2, ALONE, 1, 1, 0.0)], 3)
    assert choose_by_type(every, np.ones(3), np.zeros(3), [3, 3], [1, 0]).tolist() == [1, 2, 0]
    assert by_ratio(every, np.ones(3), np.zeros(3)).tolist() == [1, 0, 2]


@given(st.integers(0, 10**6), st.integers(1, 40), st.booleans())
def test_the_order_is_that_of_one_sort_by_all_keys(seed: int, count: int, gifts: bool) -> None:
    """The order equals one sort by ratio, owed time, fraction and place.

    Entries are sorted once per ledger, and again by fewer keys. Many keys are equal.
    """
    rng = np.random.default_rng(seed)
    types, first, none = rng.integers(0, 3, count), np.arange(count), np.full(count, ALONE)
    fraction, received = rng.choice([0.0, 0.25, 0.5], count), rng.choice([1.0, 2.0], count)
    owed = np.where((fraction > 0) | gifts, rng.choice([-1.0, 0.0, 3.0], count), 0.0)
    every = Entries(first, none, types, types, np.ones(count, dtype=np.int64), fraction, count)
    plain = np.lexsort([first, -fraction, -owed, -fraction / received])
    assert by_ratio(every, received, owed).tolist() == plain.tolist()


def test_balance_compares_with_the_allocation() -> None:
    """A selection without the most owed job is worth less than the allocation.

    Values are per worker.
    """
    every = entries([(0, ALONE, 0, 2, 0.5), (1, ALONE, 0, 1, 0.5), (2, ALONE, 0, 1, 0.5)], 3)
    due = np.array([5.0, 0.5, 0.5])
    assert by_debt(every, np.ones(3), due).tolist() == [0, 1, 2]
    assert worth(every, due).tolist() == [10.0, 0.5, 0.5]
    assert enough(every, worth(every, due)) == pytest.approx(5.5)
    assert balanced(every, np.array([0]), due)
    assert not balanced(every, np.array([1, 2]), due)


@given(st.integers(0, 10**6), st.integers(0, 30), st.booleans(), st.booleans(), st.booleans())
def test_queues_of_types_are_chosen_as_down_the_whole_order(
    seed: int, jobs: int, gifts: bool, large: bool, paired: bool
) -> None:
    """Queues by type select the same entries in the same order as one queue.

    This holds with many equal keys, with and without room for all, for any order of types, and for multi-worker
    jobs and pairs.
    """
    rng = np.random.default_rng(seed)
    first, types = np.nonzero(rng.random((jobs, 3)) < 0.7)
    count = len(first)
    beside = (first + rng.integers(1, max(jobs, 2), count)) % max(jobs, 1)
    second = np.where(paired & (beside != first) & (rng.random(count) < 0.5), beside, ALONE)
    fraction, received = rng.choice([0.0, 0.25, 0.5], count), rng.choice([1.0, 2.0], count)
    owed = np.where((fraction > 0) | gifts, rng.choice([-1.0, 0.0, 3.0], count), 0.0)
    need = rng.integers(1, 4, count) if large else np.ones(count, dtype=np.int64)
    every = Entries(first, second, types, types, need, fraction, jobs)
    order, workers = rng.permutation(3).tolist(), rng.integers(0, 12, 3).tolist()
    ranked = by_ratio(every, received, owed)
    plain = choose(every, ranked[np.argsort(np.argsort(order)[types[ranked]], kind="stable")], workers)
    assert choose_by_type(every, received, owed, workers, order).tolist() == plain.tolist()
    assert every.single == (count > 0 and need.max() == 1 and second.max() == ALONE)


def test_entries_are_single_where_no_queue_has_a_job_twice() -> None:
    """Pairs, multi-worker jobs and two columns of one type are not single entries.

    Without entries there is nothing to sort.
    """
    one = (0, ALONE, 0, 1, 0.5)
    assert entries([one, (1, ALONE, 0, 1, 0.5), (0, ALONE, 1, 1, 0.5)], 2).single
    for other in ((1, 2, 0, 1, 0.5), (1, ALONE, 0, 2, 0.5), (0, ALONE, 0, 1, 0.0)):
        assert not entries([one, other], 3).single


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 4))
def test_a_choice_keeps_all_limits_and_leaves_no_room_unused(seed: int, jobs: int, types: int) -> None:
    """A selection is feasible and maximal.

    No type is overbooked, no job selected twice, and no other entry fits.
    """
    rng = np.random.default_rng(seed)
    count = 3 * jobs
    first = rng.integers(0, jobs, count)
    second = np.where(rng.random(count) < 0.3, rng.integers(0, jobs, count), ALONE)
    second = np.where(second == first, ALONE, second)
    column = rng.integers(0, types, count)
    every = Entries(first, second, column, column, 2 ** rng.integers(0, 3, count), rng.random(count), jobs)
    workers = rng.integers(0, 9, types).tolist()
    chosen = choose(every, by_ratio(every, np.ones(count), np.zeros(count)), workers)
    left = workers - np.bincount(every.type[chosen], every.need[chosen], types)
    assert (left >= 0).all()
    served = np.concatenate([first[chosen], second[chosen][second[chosen] != ALONE]]).tolist()
    assert len(set(served)) == len(served)
    for e in set(range(count)) - set(chosen.tolist()):
        assert every.need[e] > left[column[e]] or {first[e], second[e]} & set(served)
