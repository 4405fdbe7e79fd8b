"""Branch and bound: candidates in the order of their lower bounds.

Only candidates that may still be the best are simulated. Profiled models (planning/search/profiled_candidates.py) and
analytic models (planning/mesh/search/layout_candidates.py) use the same search.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

Node = TypeVar("Node")
"""A candidate, or a set of candidates, in a state of refinement."""
Bounded = tuple[float, Node]
"""A node with a lower bound on its iteration time, in seconds."""


class CandidateSource(Protocol[Node]):
    """Interface of the problem that branch and bound searches.

    The methods order, prune and branch nodes. An implementation keeps the best candidate found so far.
    """

    def order(self, bound_s: float, node: Node) -> tuple[float, ...]:
        """Sort key of a waiting node.

        The node with the least key is next. Nodes with equal keys keep the order in which they were added.
        """

    def reaches(self, order: tuple[float, ...]) -> bool:
        """Return False if no node with this or a greater key is promising."""

    def promising(self, bound_s: float, node: Node) -> bool:
        """True if the node may still be, or contain, a candidate worth simulating."""

    def branch(self, bound_s: float, node: Node) -> Iterable[Bounded[Node]]:
        """Refine a node, or simulate it and keep the result.

        Returns:
            The nodes that replace it: with a tighter bound, divided, or changed to fit.
        """


@dataclass(order=True)
class _Waiting(Generic[Node]):
    order: tuple[float, ...]
    number: int
    bound_s: float = field(compare=False)
    node: Node = field(compare=False)


class BranchAndBound(Generic[Node]):
    """One search by branch and bound, over the nodes of a `CandidateSource`.

    Attributes:
        left_out: number of nodes that were not promising.
    """

    def __init__(self, source: CandidateSource[Node]) -> None:
        self._source, self._added = source, 0
        self._queue: list[_Waiting[Node]] = []
        self._left_out: list[_Waiting[Node]] = []

    @property
    def left_out(self) -> int:
        """Number of nodes that the current run left out."""
        return len(self._left_out)

    def add(self, *nodes: Bounded[Node]) -> None:
        """Add nodes to the queue."""
        for bound_s, node in nodes:
            heappush(self._queue, _Waiting(self._source.order(bound_s, node), self._added, bound_s, node))
            self._added += 1

    def run(self) -> None:
        """Refine and simulate nodes until no waiting node is promising.

        Nodes that were left out wait for the next run, since the best candidate may have been withdrawn by then.
        """
        while self._queue and self._source.reaches(self._queue[0].order):
            first = heappop(self._queue)
            if self._source.promising(first.bound_s, first.node):
                self.add(*self._source.branch(first.bound_s, first.node))
            else:
                self._left_out.append(first)
        self._queue += self._left_out
        self._left_out = []
        heapify(self._queue)

    def least(self) -> Bounded[Node] | None:
        """Return the waiting node with the least bound; None for an empty queue."""
        first = min(self._queue, key=lambda waiting: waiting.bound_s, default=None)
        return None if first is None else (first.bound_s, first.node)
