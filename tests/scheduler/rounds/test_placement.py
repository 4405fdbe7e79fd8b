"""Placement: consolidated or spread, stable, and without double use."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InternalError
from hocket.scheduler.rounds.placement import PlacementRequest, place, place_singles


def servers(workers: tuple[int, ...], per_server: int) -> set[int]:
    """Servers of some workers."""
    return {w // per_server for w in workers}


@given(st.integers(0, 3), st.integers(1, 6), st.lists(st.integers(0, 3), max_size=20), st.data())
def test_sizes_that_divide_each_other_stand_on_as_few_servers_as_there_can_be(
    log_size: int, count: int, logs: list[int], data: st.DataObject
) -> None:
    """Sizes of powers of two use as few servers as possible.

    On servers of 2^k workers, every job fits regardless of previous placements, as long as all fit in total.
    """
    per_server = 2**log_size
    wishes: list[PlacementRequest] = []
    room = total = count * per_server
    free = list(range(total))
    for log in sorted(logs):
        need = 2**log
        if need > room:
            break
        room -= need
        before: tuple[int, ...] = ()
        if len(free) >= need and data.draw(st.booleans()):
            before = tuple(data.draw(st.permutations(free))[:need])
            free = [w for w in free if w not in before]
        wishes.append(PlacementRequest(need, before=before))
    found = place(wishes, range(total), per_server)
    taken = [w for own in found for w in own]
    assert len(set(taken)) == len(taken)
    assert set(taken) <= set(range(total))
    for wish, own in zip(wishes, found, strict=True):
        assert len(own) == wish.need
        assert len(servers(own, per_server)) == -(-wish.need // per_server)


def test_whoever_can_stay_stays() -> None:
    """Two jobs keep their workers; the new one takes the remaining workers."""
    assert place(
        [PlacementRequest(1), PlacementRequest(1, before=(2,)), PlacementRequest(1, before=(0,))], range(3), 1
    ) == [(1,), (2,), (0,)]


def test_a_large_job_moves_those_that_cost_least() -> None:
    """A job of four takes the server with one small job, not the one with two.

    The small job moves.
    """
    wishes = [
        PlacementRequest(1, before=(0,)),
        PlacementRequest(1, before=(1,)),
        PlacementRequest(1, before=(4,)),
        PlacementRequest(4),
    ]
    assert place(wishes, range(8), 4) == [(0,), (1,), (2,), (4, 5, 6, 7)]


def test_a_job_that_was_torn_apart_is_put_together() -> None:
    """A job on two servers moves to one server that has room for it."""
    assert place([PlacementRequest(2, before=(1, 2))], range(4), 2) == [(0, 1)]


def test_small_jobs_fill_servers_that_are_begun() -> None:
    """A single-worker job takes the server with the least space left over.

    It goes to a server with two jobs instead of one, so that the larger room stays whole.
    """
    assert place(
        [PlacementRequest(1), PlacementRequest(2, before=(4, 5)), PlacementRequest(1, before=(0,))], range(8), 4
    ) == [(6,), (4, 5), (0,)]


def test_spread_jobs_stand_on_different_servers() -> None:
    """One worker a server, as long as there are servers; then two."""
    (own,) = place([PlacementRequest(3, spread=True)], range(12), 4)
    assert len(servers(own, 4)) == 3
    (own,) = place([PlacementRequest(5, spread=True)], range(12), 4)
    assert sorted(w // 4 for w in own) == [0, 0, 1, 1, 2]


def test_spread_jobs_come_after_those_that_need_whole_servers() -> None:
    """A spread job does not fragment a server that another job needs."""
    found = place([PlacementRequest(4, spread=True), PlacementRequest(4)], range(16), 4)
    assert servers(found[1], 4) == {0}
    assert servers(found[0], 4) == {1, 2, 3}


def test_workers_that_are_away_get_nothing() -> None:
    """Workers that are down are not used, and no job stays on one."""
    assert place([PlacementRequest(2, before=(0, 1))], [0, 2, 3], 2) == [(2, 3)]
    assert place([PlacementRequest(1, before=(9,))], [0], 2) == [(0,)]


@pytest.mark.parametrize("spread", [False, True])
def test_more_than_there_are_is_our_mistake(spread: bool) -> None:
    """More requested workers than available ones are an internal error."""
    with pytest.raises(InternalError, match="fewer workers"):
        place([PlacementRequest(3, spread=spread)], range(2), 1)


@given(st.integers(1, 4), st.integers(1, 12), st.randoms(use_true_random=False))
def test_jobs_of_one_worker_are_placed_as_all_others(per_server: int, workers: int, draw: Random) -> None:
    """The fast method for single-worker jobs equals the general one."""
    there = sorted(draw.sample(range(workers), draw.randint(1, workers)))
    before = draw.sample([*range(workers + 2), *[-1] * workers], draw.randint(0, len(there)))
    wishes = [PlacementRequest(1, before=() if worker < 0 else (worker,)) for worker in before]
    slow = place(wishes, there, per_server)
    stays = [worker in there for worker in before]
    taken = [worker for worker, own in zip(before, stays, strict=True) if own]
    quick = iter(place_singles(len(before) - len(taken), taken, there, per_server))
    assert [(worker if own else next(quick),) for worker, own in zip(before, stays, strict=True)] == slow
