"""Placement: which workers, once it is known who runs.

Largest first, each on as few servers as there can be, in the server where least is left over; who can stay where it is stays.
Because sizes fall, jobs whose sizes divide each other and the servers never miss a server for want of order. Jobs that are to be
spread come last, one worker on each of as many servers as there can be.
Source: section 5.5, its last paragraph; consolidated and spread: section 5.3.1.
"""

from collections.abc import Sequence
from typing import NamedTuple

from hocket.errors import InternalError

__all__ = ["Wish", "place", "place_singles"]


class Wish(NamedTuple):
    """A job, or a pair, that runs in this round on workers of one type.

    Attributes:
        need: workers. spread: on different servers.
        before: where it was in the round before, if it can stay there.
    """

    need: int
    spread: bool = False
    before: tuple[int, ...] = ()


class _Servers:
    """What is free, while workers are handed out."""

    def __init__(self, there: Sequence[int], per_server: int) -> None:
        self.per_server = per_server
        most = max(there, default=-1)
        self.free = bytearray(most + 1)
        self.left = [0] * (most // per_server + 1)
        self.wanted = [0] * len(self.left)  # by others, who would like to stay; of those that are free
        self.held = bytearray(most + 1)  # 1: somebody would like to stay here
        for worker in there:
            self.free[worker] = 1
            self.left[worker // per_server] += 1

    def hold(self, workers: Sequence[int]) -> None:
        for worker in workers:
            if worker < len(self.free):
                self.held[worker] = 1
                self.wanted[worker // self.per_server] += 1

    def let_go(self, workers: Sequence[int]) -> None:
        for worker in workers:
            if worker < len(self.free) and self.held[worker]:
                self.held[worker] = 0
                self.wanted[worker // self.per_server] -= 1

    def stays_alone(self, worker: int) -> bool:
        """Leave a job of one worker where it is, if that is free."""
        if worker >= len(self.free):
            return False
        server = worker // self.per_server
        if self.held[worker]:
            self.held[worker] = 0
            self.wanted[server] -= 1
        if not self.free[worker]:
            return False
        self.free[worker] = 0
        self.left[server] -= 1
        return True

    def can_stay(self, wish: Wish) -> bool:
        before, free = wish.before, self.free
        if len(before) != wish.need or any(w >= len(free) or not free[w] for w in before):
            return False
        if wish.spread:
            return True
        return len({w // self.per_server for w in before}) <= -(-wish.need // self.per_server)

    def take(self, workers: Sequence[int]) -> tuple[int, ...]:
        self.let_go(workers)
        for worker in workers:
            self.free[worker] = 0
            self.left[worker // self.per_server] -= 1
        return tuple(sorted(workers))

    def on(self, server: int, need: int) -> list[int]:
        """Free workers of a server, those first that nobody would like to keep."""
        start = server * self.per_server
        there = [w for w in range(start, min(start + self.per_server, len(self.free))) if self.free[w]]
        return sorted(there, key=lambda w: self.held[w])[:need]

    def together(self, need: int) -> list[int]:
        """On as few servers as there can be: whole ones first, then where least is left over and fewest have to move."""
        found: list[int] = []
        left = self.left.copy()
        while need:
            best, server = None, -1
            for s, there in enumerate(left):
                if there >= need:
                    mark = (max(0, need - there + self.wanted[s]), there)
                    if best is None or mark < best:
                        best, server = mark, s
                        if mark == (0, need):
                            break
            if best is None:
                server = max(range(len(left)), key=lambda s: (left[s], -self.wanted[s], -s))
            part = self.on(server, min(need, left[server]))
            if not part:
                raise InternalError("placement: fewer workers than were to be placed")
            found += part
            need -= len(part)
            left[server] = 0
        return found

    def apart(self, need: int) -> list[int]:
        """One on each of the emptiest servers, and again."""
        by_server = [self.on(s, need) for s in sorted(range(len(self.left)), key=lambda s: (-self.left[s], s))]
        ranks = range(max(map(len, by_server), default=0))
        found = [own[rank] for rank in ranks for own in by_server if rank < len(own)][:need]
        if len(found) < need:
            raise InternalError("placement: fewer workers than were to be placed")
        return found


def place(wishes: Sequence[Wish], there: Sequence[int], per_server: int) -> list[tuple[int, ...]]:
    """Workers for each wish, in the order of the wishes.

    Arguments:
        wishes: of one type of workers; together no more than there are.
        there: workers that are up; worker w stands on server w // per_server.
    """
    servers = _Servers(there, per_server)
    for wish in wishes:
        servers.hold(wish.before)
    found: list[tuple[int, ...]] = [()] * len(wishes)
    order = sorted(range(len(wishes)), key=lambda i: (wishes[i].spread, -wishes[i].need))
    at = 0
    while at < len(order):
        size = (wishes[order[at]].spread, wishes[order[at]].need)
        end = at
        while end < len(order) and (wishes[order[end]].spread, wishes[order[end]].need) == size:
            end += 1
        _place_alike(wishes, order[at:end], servers, found)
        at = end
    return found


def place_singles(count: int, taken: Sequence[int], there: Sequence[int], per_server: int) -> list[int]:
    """The same where every wish is for one worker, and much sooner: workers for those that are nowhere yet.

    Arguments:
        count: of them. taken: workers of those that stay.
    """
    free = set(there)
    free.difference_update(taken)
    if count > len(free):
        raise InternalError("placement: fewer workers than were to be placed")
    if per_server == 1:
        return sorted(free)[:count]
    left: dict[int, int] = {}
    for worker in free:
        left[worker // per_server] = left.get(worker // per_server, 0) + 1
    # The server where least is left over stays that until nothing is.
    return sorted(free, key=lambda worker: (left[worker // per_server], worker))[:count]


def _place_alike(wishes: Sequence[Wish], alike: list[int], servers: _Servers, found: list[tuple[int, ...]]) -> None:
    """Wishes of one size: those first that can stay."""
    moving = []
    for i in alike:
        wish = wishes[i]
        if wish.need == 1:
            if wish.before and servers.stays_alone(wish.before[0]):
                found[i] = wish.before
            else:
                moving.append(i)
            continue
        servers.let_go(wish.before)
        if servers.can_stay(wish):
            found[i] = servers.take(wish.before)
        else:
            moving.append(i)
    for i in moving:
        pick = servers.apart if wishes[i].spread else servers.together
        found[i] = servers.take(pick(wishes[i].need))
