"""Packing, compared with an exhaustive search."""

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hocket.scheduler.model.allocation import ALONE
from hocket.scheduler.rounds.knapsack import pack
from hocket.scheduler.rounds.priorities import Entries
from tests.tiers import examples


def legal(entries: Entries, chosen: tuple[int, ...], workers: list[int]) -> bool:
    """True if no job is in two entries and no type is overbooked."""
    jobs = [j for e in chosen for j in (int(entries.first[e]), int(entries.second[e])) if j != ALONE]
    used = np.bincount(entries.type[list(chosen)], entries.need[list(chosen)], len(workers)) if chosen else np.zeros(1)
    return len(set(jobs)) == len(jobs) and bool((used <= workers[: len(used)]).all())


def random_entries(seed: int, count: int) -> tuple[Entries, np.ndarray, list[int]]:
    """Entries of six jobs on two types, their values, and workers."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 6, count)
    second = np.where(rng.random(count) < 0.4, (first + rng.integers(1, 6, count)) % 6, ALONE)
    kind = rng.integers(0, 2, count)
    entries = Entries(first, second, kind, kind, 2 ** rng.integers(0, 3, count), rng.random(count), 6)
    return entries, rng.integers(0, 5, count).astype(float), rng.integers(1, 7, 2).tolist()


@given(st.integers(0, 10**6), st.integers(1, 8))
@examples(40)
def test_it_finds_the_best_there_is(seed: int, count: int) -> None:
    """The optimal value is reached, and no value above it."""
    entries, worth, workers = random_entries(seed, count)
    every = (c for size in range(count + 1) for c in combinations(range(count), size) if legal(entries, c, workers))
    best = max(float(worth[list(chosen)].sum()) for chosen in every)
    found = pack(entries, worth, workers, best)
    assert found is not None
    assert legal(entries, tuple(found.tolist()), workers)
    assert worth[found].sum() == best
    assert pack(entries, worth, workers, best + 0.5) is None


def test_it_answers_the_same_every_time() -> None:
    """The same selection ten times, independent of clock and chance."""
    entries, worth, workers = random_entries(7, 200)
    found = [pack(entries, worth, workers, 1.0) for _ in range(10)]
    assert all(one is not None and one.tolist() == found[0].tolist() for one in found)  # type: ignore[union-attr]
