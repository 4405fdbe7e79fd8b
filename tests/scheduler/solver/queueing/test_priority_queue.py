"""Priority queues: the fastest remaining workers, in plain and compiled loops."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.solver.lp.rejected import refusals
from hocket.scheduler.solver.queueing import greedy_fastest
from hocket.scheduler.solver.queueing.priority_queue import queue
from tests.scheduler.helpers.crowds import crowd
from tests.tiers import examples

ROOT = Path(__file__).resolve().parents[4]
NEVER = 10**18


def asked(plain_work: int, question: Any, *told: Any) -> Any:
    """Result of a process with a given limit of plain work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy_fastest, "PLAIN_WORK", plain_work)
        patch.setattr(greedy_fastest, "_worked", 0)
        return question(*told)


def test_a_type_that_is_too_small_is_not_taken_by_earlier_jobs() -> None:
    """The fastest workers of a job are of a type with enough of them for the job."""
    types = WorkerType("v100", 1), WorkerType("k80", 4)
    job = Active(Job("0", "A3C", 100.0, 2), 100.0)
    there = Snapshot(types, (Placement(0), Placement(1)), (job,), np.array([[2.0, 1.0]]))
    [told] = queue(there, range(1), True).allocation(there, 0.0).reasons
    assert told.binding == "it is always on k80, its fastest"


@examples(200)
@given(st.integers(0, 2**32 - 1), st.integers(1, 14), st.booleans(), st.booleans(), st.sampled_from([0, NEVER]))
def test_each_has_the_fastest_workers_that_are_left(
    seed: int, jobs: int, spread: bool, overtake: bool, plain_work: int
) -> None:
    """The result equals a simple loop.

    The same jobs run on the same columns, and the same job is the first that does not fit.
    """
    there = crowd(seed, jobs, False, spread)
    refused = refusals(there)
    order = [j for j in np.random.default_rng(seed).permutation(jobs).tolist() if j not in refused]
    free = {own.name: own.workers for own in there.types}
    served: list[tuple[int, int]] = []
    stuck, worth = None, 0.0
    for place, j in enumerate(order):
        if not any(free.values()) or (stuck is not None and not overtake):
            break
        needs = there.jobs[j].job.scale_factor
        able = [
            (-there.throughputs[j, c], c)
            for c, own in enumerate(there.columns)
            if free[there.types[own.type].name] >= needs and there.throughputs[j, c] > 0
        ]
        if able:
            _, c = min(able)
            free[there.types[there.columns[c].type].name] -= needs
            served.append((j, c))
            room = [there.types[own.type].workers >= needs for own in there.columns]
            worth += (len(order) - place) * there.throughputs[j, c] / there.throughputs[j][room].max()
        elif stuck is None:
            stuck = j
    found = asked(plain_work, queue, there, order, overtake)
    assert list(zip(found.jobs, found.columns.tolist(), strict=True)) == served
    assert found.stuck == stuck
    assert found.worth == pytest.approx(worth)
    assert found.order == order
    assert not found.refused


@st.composite
def lines(draw: st.DrawFn) -> tuple[np.ndarray, list[int], list[int], list[int], bool]:
    """Arguments of `served`.

    Up to 40 jobs of any scale factor on up to 3 types, some with two columns or none.
    """
    types, line = draw(st.integers(0, 3)), draw(st.integers(0, 40))
    kind = draw(st.lists(st.integers(0, types - 1), max_size=5)) if types else []
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    workers = rng.integers(0, draw(st.sampled_from([3, 20])), types).tolist()
    scale = rng.integers(1, draw(st.sampled_from([1, 2, 9])) + 1, line).tolist()
    steps = rng.uniform(0.1, 10, (line, len(kind))) * (
        rng.random((line, len(kind))) < draw(st.sampled_from([0.8, 1.0]))
    )
    if draw(st.booleans()):
        steps = np.asfortranarray(steps.round())  # with ties
    return steps, scale, workers, kind, draw(st.booleans())


@examples(300)
@given(lines())
def test_compiled_loops_answer_as_the_plain_ones(told: Any) -> None:
    """Compiled and plain loops agree bitwise, also for jobs that cannot run."""
    steps, scale, workers, kind, _ = told
    room = np.array([workers[own] for own in kind], dtype=float)
    able = ((steps > 0) & (np.array(scale)[:, None] <= room)).any(axis=1)
    plain, fast = asked(NEVER, greedy_fastest.served, *told), asked(0, greedy_fastest.served, *told)
    assert (plain is None) == (fast is None) == (not able.all())
    if plain is not None:
        assert plain[0].tolist() == fast[0].tolist()
        assert plain[0].dtype == fast[0].dtype
        assert plain[1:] == fast[1:]


@pytest.mark.parametrize("plain_work", [0, NEVER])
@pytest.mark.parametrize("scale", [3, 2**70])
@pytest.mark.parametrize("overtake", [False, True])
def test_who_can_run_nowhere_is_not_in_line(plain_work: int, scale: int, overtake: bool) -> None:
    """A job that cannot run does not block the queue or count, whatever its size."""
    jobs = tuple(
        Active(Job(name, "any", 1e3, asks), 1e3) for name, asks in (("a", scale), ("b", 1), ("c", 1), ("d", 2))
    )
    there = Snapshot((WorkerType("t", 2),), (Placement(0),), jobs, np.array([[1.0], [0.0], [2.0], [2.0]]))
    found = asked(plain_work, queue, there, range(4), overtake)
    assert found.refused == refusals(there)
    assert set(found.refused) == {0, 1}
    assert (found.order, found.jobs, found.columns.tolist(), found.stuck) == ([2, 3], [2], [0], 3)
    assert found.worth == 2.0


@pytest.mark.parametrize(
    ("questions", "overtake", "loaded"),
    [(16, False, False), (17, False, True), (17, True, False), (333_335, True, True)],
)
@pytest.mark.thinned(most=1)
def test_numba_is_loaded_only_where_much_is_asked(questions: int, overtake: bool, loaded: bool) -> None:
    """Numba is loaded only in processes with many queries.

    The results do not change.
    """
    code = (
        "import sys, numpy as np; from hocket.scheduler.solver.queueing.greedy_fastest import served; steps = np.ones((3, 1));"
        f"found = [served(steps, [1, 1, 1], [2], [0], {overtake}) for _ in range({questions})];"
        "print('numba' in sys.modules, {(*columns.tolist(), run, worth) for columns, run, worth in found})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, text=True)
    assert done.stdout.strip() == f"{loaded} {{(0, 0, 2, 5.0)}}"


def test_where_numba_is_not_installed_all_is_answered_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without numba all results are equal, in plain Python."""
    told = np.ones((3, 1)), [1, 1, 1], [2], [0], False
    expected = asked(0, greedy_fastest.served, *told)
    monkeypatch.setitem(sys.modules, "numba", None)
    greedy_fastest.compiled.cache_clear()
    try:
        assert greedy_fastest.compiled() is None
        columns, run, worth = asked(0, greedy_fastest.served, *told)
    finally:
        greedy_fastest.compiled.cache_clear()
    assert (columns.tolist(), run, worth) == (expected[0].tolist(), *expected[1:])
