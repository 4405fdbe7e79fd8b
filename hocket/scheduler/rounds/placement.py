"""Placement: choose the workers of the jobs selected for a round.

Larger jobs go first, each on as few servers as possible, preferring the server with the least space left over. A job
stays on its workers if possible. Because sizes descend, jobs with sizes that divide each other and the server size
are never fragmented by the order. Spread jobs come last, with one worker on each of as many servers as possible.
Source: Narayanan's dissertation, section 5.5, last paragraph; consolidated and spread: section 5.3.1.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hocket.errors import InternalError

__all__ = ["PlacementRequest", "place", "place_singles"]


class PlacementRequest(NamedTuple):
    """Job, or pair of jobs, that runs in this round on workers of one type.

    Attributes:
        need: number of workers.
        spread: True for workers on different servers.
        before: previous workers, if the job can stay there.
    """

    need: int
    spread: bool = False
    before: tuple[int, ...] = ()


_Wish = tuple[int, bool, tuple[int, ...]]


class _Servers:
    """Free workers of one type during placement."""

    def __init__(self, there: Sequence[int], per_server: int) -> None:
        self.per_server = per_server
        most = max(there, default=-1)
        self.free = bytearray(most + 1)
        self.left = [0] * (most // per_server + 1)
        self.wanted = [0] * len(self.left)  # free workers that other jobs want to keep, by server
        self.held = bytearray(most + 1)  # 1: a job wants to keep this worker
        for worker in there:
            self.free[worker] = 1
            self.left[worker // per_server] += 1

    def hold(self, workers: Iterable[int]) -> None:
        held, wanted, per_server, most = self.held, self.wanted, self.per_server, len(self.held)
        for worker in workers:
            if worker < most:
                held[worker] = 1
                wanted[worker // per_server] += 1

    def let_go(self, workers: Sequence[int]) -> None:
        for worker in workers:
            if worker < len(self.free) and self.held[worker]:
                self.held[worker] = 0
                self.wanted[worker // self.per_server] -= 1

    def leave_alone(self, wishes: Sequence[_Wish], alike: list[int], found: list[tuple[int, ...]]) -> list[int]:
        """Keep single-worker jobs on their previous workers where these are free.

        Arguments:
            alike: indices of the requests of these jobs.
            found: workers of each request; filled in for the jobs that stay.

        Returns:
            Indices of the other requests.
        """
        free, held, per_server, most, moving = self.free, self.held, self.per_server, len(self.free), []
        for i in alike:
            before = wishes[i][2]
            if before and before[0] < most:
                worker = before[0]
                if held[worker]:
                    held[worker] = 0
                    self.wanted[worker // per_server] -= 1
                if free[worker]:
                    free[worker] = 0
                    self.left[worker // per_server] -= 1
                    found[i] = before
                    continue
            moving.append(i)
        return moving

    def can_stay(self, need: int, spread: bool, before: tuple[int, ...]) -> bool:
        free, most, per_server = self.free, len(self.free), self.per_server
        if len(before) != need:
            return False
        for worker in before:
            if worker >= most or not free[worker]:
                return False
        if spread or min(before) // per_server == max(before) // per_server:
            return True
        return len({worker // per_server for worker in before}) <= -(-need // per_server)

    def take(self, workers: Sequence[int]) -> tuple[int, ...]:
        for worker in workers:
            server = worker // self.per_server
            if self.held[worker]:
                self.held[worker] = 0
                self.wanted[server] -= 1
            self.free[worker] = 0
            self.left[server] -= 1
        return tuple(sorted(workers))

    def on(self, server: int, need: int) -> list[int]:
        """At most `need` free workers of a server.

        Workers that no other job wants to keep come first.
        """
        start, free, held = server * self.per_server, self.free, self.held
        there = [w for w in range(start, min(start + self.per_server, len(free))) if free[w]]
        return [*[w for w in there if not held[w]], *[w for w in there if held[w]]][:need]

    def together(self, need: int) -> list[int]:
        """Workers on as few servers as possible.

        Whole servers come first, then the server where the fewest jobs have to move and the least space is left over.
        """
        found: list[int] = []
        left, wanted = self.left.copy(), self.wanted
        while need:
            server, fewest, least = -1, 0, 0
            for s, there in enumerate(left):
                if there >= need:
                    move = need - there + wanted[s]
                    if move < 0:
                        move = 0
                    if server < 0 or move < fewest or (move == fewest and there < least):
                        server, fewest, least = s, move, there
                        if not move and there == need:
                            break
            if server < 0:
                server = max(range(len(left)), key=lambda s: (left[s], -wanted[s], -s))
            part = self.on(server, min(need, left[server]))
            if not part:
                raise InternalError("placement: fewer workers than requested")
            found += part
            need -= len(part)
            left[server] = 0
        return found

    def apart(self, need: int) -> list[int]:
        """Workers on as many servers as possible, one per server in turn, emptiest first."""
        by_server = [self.on(s, need) for s in sorted(range(len(self.left)), key=lambda s: (-self.left[s], s))]
        ranks = range(max(map(len, by_server), default=0))
        found = [own[rank] for rank in ranks for own in by_server if rank < len(own)][:need]
        if len(found) < need:
            raise InternalError("placement: fewer workers than requested")
        return found


def place(wishes: Sequence[_Wish], there: Sequence[int], per_server: int) -> list[tuple[int, ...]]:
    """Choose workers for each request; the result has the order of the requests.

    Arguments:
        wishes: tuples (need, spread, before) with the fields of PlacementRequest, all for one worker type. The sum of
            `need` must not exceed the number of workers that are up.
        there: indices of the workers that are up; worker w is on server w // per_server.
    """
    servers = _Servers(there, per_server)
    found: list[tuple[int, ...]] = [()] * len(wishes)
    alike: dict[tuple[bool, int], list[int]] = {}
    servers.hold([worker for _, _, before in wishes for worker in before])
    for i, (need, spread, _) in enumerate(wishes):
        alike.setdefault((spread, -need), []).append(i)
    for size in sorted(alike):
        _place_alike(wishes, alike[size], servers, found)
    return found


def place_singles(count: int, taken: Sequence[int], there: Sequence[int], per_server: int) -> list[int]:
    """Choose workers for new single-worker jobs, faster than `place`.

    Arguments:
        count: number of jobs to place.
        taken: workers of the jobs that stay.
        there: indices of the workers that are up; worker w is on server w // per_server.
        per_server: number of workers on each server.
    """
    free = set(there)
    free.difference_update(taken)
    if count > len(free):
        raise InternalError("placement: fewer workers than requested")
    if per_server == 1:
        return sorted(free)[:count]
    left: dict[int, int] = {}
    for worker in free:
        left[worker // per_server] = left.get(worker // per_server, 0) + 1
    # The server with the least space left over remains so until it is full.
    return sorted(free, key=lambda worker: (left[worker // per_server], worker))[:count]


def _place_alike(wishes: Sequence[_Wish], alike: list[int], servers: _Servers, found: list[tuple[int, ...]]) -> None:
    """Place requests of equal size; jobs that can stay come first.

    Arguments:
        alike: indices of these requests.
        found: workers of each request; filled in.
    """
    need, spread, _ = wishes[alike[0]]
    if need == 1:
        moving = servers.leave_alone(wishes, alike, found)
    else:
        moving = []
        for i in alike:
            before = wishes[i][2]
            servers.let_go(before)
            if servers.can_stay(need, spread, before):
                found[i] = servers.take(before)
            else:
                moving.append(i)
    if need == 1 and not spread and not any(servers.wanted):  # by spread jobs
        free = [worker for worker, is_free in enumerate(servers.free) if is_free]
        for i, worker in zip(moving, place_singles(len(moving), (), free, servers.per_server), strict=True):
            found[i] = servers.take((worker,))
        return
    pick = servers.apart if spread else servers.together
    for i in moving:
        found[i] = servers.take(pick(need))
