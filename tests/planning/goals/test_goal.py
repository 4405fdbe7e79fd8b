"""Goals: the value of an iteration, and the search for the best sub-cluster.

Nothing is assumed about the order of sub-clusters.
"""

from dataclasses import dataclass, replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError, RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.hardware.parts import Subcluster, parts
from hocket.planning.goals.goal import Goal, equation_4_4_s, goal_of, worth
from hocket.planning.goals.subclusters import DEAR, NO_FIT, SLOW, part_for, planned_part
from hocket.planning.search.result import TIE

SERVER = Cluster("server", (Level("server", 8, 1e11),), "v100-16gb", price_usd_per_hour=36.0)
PARTS = parts(SERVER)


@dataclass(frozen=True)
class Best:
    """A plan with a given time."""

    iteration_s: float
    label: str = "plan"


@dataclass(frozen=True)
class Found:
    """A search that found the plan."""

    best: Best
    behind: tuple[Best, ...] = ()

    @property
    def written(self) -> Best:
        """The written plan: equal to the best."""
        return self.best

    @property
    def candidates(self) -> tuple[Best, ...]:
        """Candidates, the best first; others may be slightly faster."""
        return self.best, *self.behind


@dataclass
class Asks:
    """Searches with given seconds of an iteration by number of devices.

    None stands for a cluster on which nothing fits. `asked` records the ceilings of searches.
    """

    seconds: dict[int, float | None]
    share: float = 0.0

    def __post_init__(self) -> None:
        self.asked: dict[int, float] = {}

    def least_s(self, part: Subcluster) -> float:
        """Lower bound: a share of the seconds."""
        return self.share * (self.seconds[part.devices] or 0.0)

    def search(self, part: Subcluster, ceiling_s: float) -> tuple[Found, float] | None:
        """Result from the table."""
        self.asked[part.devices] = ceiling_s
        seconds = self.seconds[part.devices]
        if seconds is None:
            raise RefusedError("plan", "nothing", "something")
        return (Found(Best(seconds)), seconds) if seconds <= ceiling_s else None


tables = st.lists(st.none() | st.floats(0.01, 100), min_size=8, max_size=8)


@given(times=tables, share=st.sampled_from((0.0, 0.5, 1.0)), deadline_s=st.floats(10, 1e5))
def test_the_fewest_devices_of_all(times: list[float | None], share: float, deadline_s: float) -> None:
    """The result equals an exhaustive trial, with times in any order."""
    goal = Goal("devices", samples=1000, deadline_s=deadline_s)
    meeting = [n for n, seconds in enumerate(times, 1) if seconds is not None and 100 * seconds <= deadline_s]
    found = part_for(goal, PARTS, 10, Asks(dict(enumerate(times, 1)), share))
    assert (None if found.best is None else found.best.part.devices) == min(meeting, default=None)
    if not meeting:
        with pytest.raises(RefusedError, match="expected completion within"):
            _ = found.chosen


@given(times=tables, share=st.sampled_from((0.0, 0.5, 1.0)), deadline_s=st.none() | st.floats(10, 1e5))
def test_the_cheapest_of_all(times: list[float | None], share: float, deadline_s: float | None) -> None:
    """The result equals an exhaustive trial: the fastest within the tolerance.

    Only sub-clusters that meet the deadline count.
    """
    goal = Goal("cost", samples=1000, deadline_s=deadline_s)
    costs = {
        n: n * seconds
        for n, seconds in enumerate(times, 1)
        if seconds is not None and 100 * seconds <= (deadline_s or inf)
    }
    found = part_for(goal, PARTS, 10, Asks(dict(enumerate(times, 1)), share))
    if found.best is None:
        assert not costs
        return
    near = [n for n, cost in costs.items() if cost <= min(costs.values()) * (1 + TIE) * (1 + 1e-12)]
    best_s = found.best.worth.iteration_s if found.best.worth else inf
    assert best_s == pytest.approx(min(times[n - 1] or inf for n in near))
    assert {one.why for one in found.tried} <= {"", NO_FIT, SLOW, DEAR}


def test_parts_that_cannot_serve_are_not_searched() -> None:
    """Lower bounds, or a smaller sub-cluster that meets the deadline, avoid searches."""
    asks = Asks({n: 8.0 / n for n in range(1, 9)}, share=0.9)
    found = part_for(Goal("devices", samples=100, deadline_s=20), PARTS, 10, asks)
    assert found.best is not None
    assert (found.best.part.devices, found.left) == (4, 4)
    assert list(asks.asked) == [4]
    planned = planned_part(found, 10)
    assert planned.worth.training_s == 20
    assert planned.worth.training_usd == pytest.approx(20 * 4 * 0.01)
    assert planned.worth.samples_per_usd == pytest.approx(100 / 0.8)


def test_how_far_the_deadline_is() -> None:
    """If no sub-cluster meets the deadline, the best possible time is reported."""
    found = part_for(Goal("devices", samples=100, deadline_s=5), PARTS, 10, Asks({n: 8.0 / n for n in range(1, 9)}))
    with pytest.raises(RefusedError, match=r"10 s at best, on server; expected completion within 5 s"):
        _ = found.chosen


def test_how_far_the_deadline_is_at_least() -> None:
    """The reported time is the fastest of all results.

    It may be on fewer devices, or of a plan that counts as equal to the best.
    """
    goal = Goal("devices", samples=100, deadline_s=5)
    fewer = part_for(goal, PARTS, 10, Asks({n: 0.9 if n == 7 else 8.0 / n for n in range(1, 9)}, share=0.8))
    with pytest.raises(RefusedError, match=r"9 s at best, on 7 v100-16gb of server"):
        _ = fewer.chosen

    class Ties(Asks):
        def search(self, part: Subcluster, ceiling_s: float) -> tuple[Found, float] | None:
            answer = super().search(part, ceiling_s)
            return answer and (replace(answer[0], behind=(Best(0.98 * answer[1]),)), answer[1])

    tied = part_for(goal, PARTS, 10, Ties({n: 8.0 / n for n in range(1, 9)}))
    with pytest.raises(RefusedError, match=r"9\.8\d* s at best, on server"):
        _ = tied.chosen


def test_costs_need_prices() -> None:
    """The sub-cluster without a price is named."""
    free = parts(replace(SERVER, price_usd_per_hour=None))
    with pytest.raises(InputError, match=r"price_usd_per_hour: found none, on 1 v100-16gb of server"):
        part_for(Goal("cost"), free, 10, Asks(dict.fromkeys(range(1, 9), 1.0)))


def test_what_an_iteration_means() -> None:
    """Batches are whole, and all devices are paid for."""
    found = worth(Goal(samples=101), 10, 2.0, 4, 7200.0)
    assert (found.training_s, found.training_usd, found.samples_per_usd) == (22.0, 44.0, 2.5)
    assert worth(Goal(), 10, 2.0, 4, None) == replace(found, samples_per_usd=None, training_s=None, training_usd=None)
    # Section 4.5.1: 175 billion parameters, 300 billion tokens, 1,024 devices at 140 TFLOP/s: 34 days.
    assert equation_4_4_s(300e9, 175e9, 1024, 140e12) / 86400 == pytest.approx(34, abs=0.5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("speed", None, None, None), "objective: found 'speed'; expected one of time, cost, devices"),
        (("devices", None, None, None), "objective: found devices, without a deadline"),
        (("", None, None, 5.0), "deadline: found no number of samples"),
        (("", -1.0, None, None), "samples: found -1.0; expected > 0"),
        (("", 1.0, 1.0, None), "tokens: found tokens and samples"),
    ],
)
def test_what_is_asked_wrongly(words: tuple[str, float | None, float | None, float | None], message: str) -> None:
    """Invalid goals are refused by name."""
    with pytest.raises(InputError, match=message):
        goal_of(*words, sequence=8)


def test_goals_as_they_are_meant() -> None:
    """A deadline asks for the fewest devices; tokens are converted to samples.

    Tokens of a profile are refused.
    """
    assert goal_of("", None, 80.0, 5.0, sequence=8) == Goal("devices", 10.0, 5.0)
    assert goal_of("", None, None, None) == Goal("time")
    with pytest.raises(InputError, match="tokens: found a profile"):
        goal_of("", None, 80.0, None)
