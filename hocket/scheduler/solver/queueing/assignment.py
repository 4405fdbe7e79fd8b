"""Minimum total completion time: assign jobs to positions in worker queues.

The last job on a worker delays only itself, the last but one delays two jobs, and so on: a job of t seconds at
position p, counted from the end of the queue, adds p t to the sum of completion times. Workers of a type are
interchangeable, so a position holds as many jobs as there are workers of its type. It is needed only when the next
position towards the end is full. Jobs are placed one by one, the longest first, each along the cheapest chain of
moves. The final prices (dual variables) of the positions prove that no assignment has a smaller sum.
Source: successive shortest augmenting paths (Tomizawa 1971; Jonker and Volgenant 1987).
"""

from heapq import heapify, heappop, heappush

import numpy as np

_Heap = list[tuple[float, int]]


class Queues:
    """Assignment of jobs to queue positions with the minimum sum of completion times.

    Attributes:
        kind, rank: worker type of each position, and its number counted from the end of the queue; 1 is the last.
        place: index of the position of each job.
        sum_s: sum of completion times, in seconds.
        bound_s: lower bound of the sum of any assignment, in seconds.
    """

    def __init__(self, needs_s: np.ndarray, workers: list[int]) -> None:
        """
        Arguments:
            needs_s: seconds of each job on each worker type; shape (jobs, types), at least one job. It is inf on types
                where the job cannot run; each job can run on some type.
            workers: number of workers of each type, at least one each.
        """
        self._workers = workers
        self._needs_s: list[list[float]] = needs_s.tolist()
        self.kind: list[int] = []
        self.rank: list[int] = []
        self.place = [-1] * len(needs_s)
        self._price: list[float] = []
        self._room: list[int] = []
        # For each full position, by target position: heap of (change of cost, job); jobs may have left.
        self._moves: list[dict[int, _Heap]] = []
        for k in range(len(workers)):
            self._add(k, 1)
        self._put((-needs_s.min(axis=1)).argsort(kind="stable").tolist())
        price = np.array(self._price)
        ends_s = needs_s.take(self.kind, axis=1) * self.rank
        self.sum_s = float(ends_s[np.arange(len(needs_s)), self.place].sum())
        ends_s += price
        self.bound_s = float(ends_s.min(axis=1).sum() - price.dot([workers[k] for k in self.kind]))

    def first(self) -> list[tuple[int, int]]:
        """First job of each worker, with the index of the worker type.

        The jobs at one position run on different workers of its type. The workers without an earlier job get the jobs
        with the lowest indices.
        """
        there: list[list[int]] = [[] for _ in self.kind]
        for job, place in enumerate(self.place):
            there[place].append(job)
        found: list[tuple[int, int]] = []
        before = [0] * len(self._workers)
        for place in range(len(there) - 1, -1, -1):  # positions of a type were added from the last one on
            kind, here = self.kind[place], there[place]
            now = len(here) - before[kind]
            if now > 0:
                found.extend([(job, kind) for job in here[:now]])
                before[kind] = len(here)
        return found

    def _add(self, kind: int, rank: int) -> None:
        self.kind.append(kind)
        self.rank.append(rank)
        self._price.append(0.0)
        self._room.append(self._workers[kind])
        self._moves.append({})

    def _put(self, jobs: list[int]) -> None:
        """Place jobs one by one, each where it adds the least to the sum."""
        place, room, kind, rank, price = self.place, self._room, self.kind, self.rank, self._price
        for job in jobs:
            needs_s = self._needs_s[job]
            distance = [own * needs_s[k] + more for own, k, more in zip(rank, kind, price)]  # noqa: B905
            at = distance.index(min(distance))
            if room[at]:
                place[job] = at  # no job moves, and no price changes
            else:
                at = self._move_on(job, distance)
            room[at] -= 1
            if not room[at]:
                self._add(kind[at], rank[at] + 1)

    def _move_on(self, job: int, distance: list[float]) -> int:
        """Place a job at a full position by the cheapest chain of moves.

        The job enters a full position, one of the jobs there moves to another position, and so on, until a position
        has room.

        Arguments:
            distance: cost of the job at each position, updated in place.

        Returns:
            Index of the position with room, where the chain ends.
        """
        price, place = self._price, self.place
        through = [job] * len(distance)  # job that would move into each position
        near, closed = list(range(len(distance))), []
        while True:
            at = min(near, key=distance.__getitem__)
            near.remove(at)
            if self._room[at]:
                break
            closed.append(at)
            begun = distance[at] - price[at]
            moves = self._moves_from(at, near)
            for to in near:
                heap = moves[to]
                more, mover = heap[0]
                while place[mover] != at:
                    heappop(heap)
                    more, mover = heap[0]
                onward = begun + more + price[to]
                if onward < distance[to]:
                    distance[to], through[to] = onward, mover
        for full in closed:
            price[full] += distance[at] - distance[full]
        found = at
        while True:
            mover = through[at]
            before = place[mover]
            self._enter(mover, at)
            if mover == job:
                return found
            at = before

    def _enter(self, job: int, at: int) -> None:
        self.place[job] = at
        rank, kind, needs_s = self.rank, self.kind, self._needs_s[job]
        here_s = rank[at] * needs_s[kind[at]]
        for to, heap in self._moves[at].items():
            heappush(heap, (rank[to] * needs_s[kind[to]] - here_s, job))

    def _moves_from(self, at: int, near: list[int]) -> dict[int, _Heap]:
        """Heaps of moves, (change of cost, job), from a full position, by target position.

        Arguments:
            at: index of the full position.
            near: target positions; the result may contain others.
        """
        moves = self._moves[at]
        new = [to for to in near if to not in moves]
        if new:
            less, here, needs_s = self.rank[at], self.kind[at], self._needs_s
            there = [
                (job, needs_s[job], less * needs_s[job][here]) for job, place in enumerate(self.place) if place == at
            ]
            for to in new:
                more, kind = self.rank[to], self.kind[to]
                moves[to] = [(more * own_s[kind] - here_s, job) for job, own_s, here_s in there]
                heapify(moves[to])
        return moves
