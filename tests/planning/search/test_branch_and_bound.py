"""Branch and bound finds the best candidate with few simulations."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from hocket.planning.search.branch_and_bound import Bounded, BranchAndBound


@dataclass(frozen=True)
class Tree:
    """A set of candidates.

    A leaf has its seconds. The bound of another tree is a share of its least seconds.
    """

    seconds: float = inf
    share: float = 1.0
    parts: tuple["Tree", ...] = ()

    @property
    def least_s(self) -> float:
        """Seconds of the best leaf."""
        return min((part.least_s for part in self.parts), default=self.seconds)

    @property
    def bounded(self) -> Bounded["Tree"]:
        """The tree with its bound."""
        return self.share * self.least_s, self


class Leaves:
    """A source that simulates leaves."""

    def __init__(self) -> None:
        self.best_s = inf
        self.simulated: list[float] = []

    def order(self, bound_s: float, node: Tree) -> tuple[float, ...]:
        """Order by bounds alone."""
        return (bound_s,)

    def reaches(self, order: tuple[float, ...]) -> bool:
        """Always true: nodes are left out one by one."""
        return True

    def promising(self, bound_s: float, node: Tree) -> bool:
        """True for bounds below the best."""
        return bound_s < self.best_s

    def branch(self, bound_s: float, node: Tree) -> Iterable[Bounded[Tree]]:
        """Divide a tree, or simulate a leaf."""
        if node.parts:
            return [part.bounded for part in node.parts]
        self.simulated.append(node.seconds)
        self.best_s = min(self.best_s, node.seconds)
        return []


SHARES = st.floats(0.1, 1.0)
LEAVES = st.builds(Tree, st.integers(1, 20).map(float), SHARES)
TREES = st.recursive(
    LEAVES, lambda parts: st.builds(Tree, st.just(inf), SHARES, st.lists(parts, min_size=1, max_size=4).map(tuple))
)


@given(st.lists(TREES, min_size=1, max_size=5))
def test_the_best_candidate_is_found(trees: list[Tree]) -> None:
    """The best leaf is found, and no waiting bound is below it."""
    source = Leaves()
    search = BranchAndBound[Tree](source)
    search.add(*(tree.bounded for tree in trees))
    search.run()
    assert source.best_s == min(tree.least_s for tree in trees)
    least = search.least()
    assert least is None or least[0] >= source.best_s


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_exact_bounds_need_one_simulation(seconds: list[int]) -> None:
    """With bounds that equal the seconds only the best is simulated; the others wait."""
    source = Leaves()
    search = BranchAndBound[Tree](source)
    search.add(*(Tree(float(one)).bounded for one in seconds))
    search.run()
    assert source.simulated == [min(seconds)]
    assert search.left_out == 0


def test_candidates_left_out_are_tried_when_the_best_is_withdrawn() -> None:
    """A second run goes on with the nodes that the first run left out."""
    source = Leaves()
    search = BranchAndBound[Tree](source)
    search.add(*(Tree(float(one)).bounded for one in (5, 3, 9, 4)))
    search.run()
    assert source.simulated == [3.0]
    assert search.least() == (4.0, Tree(4.0))
    source.best_s = inf
    search.run()
    assert source.simulated == [3.0, 4.0]
    assert search.least() == (5.0, Tree(5.0))


def test_equal_keys_follow_each_other_as_they_came() -> None:
    """Ties in the queue keep the order of arrival, so that a search is deterministic."""
    source = Leaves()
    seen: list[float] = []
    source.branch = lambda bound_s, node: seen.append(node.seconds) or []  # type: ignore[method-assign]
    search = BranchAndBound[Tree](source)
    search.add(*((1.0, Tree(float(one))) for one in (7, 2, 5)))
    search.run()
    assert seen == [7.0, 2.0, 5.0]
