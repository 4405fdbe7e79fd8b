"""Find the sub-cluster that serves a goal best, by a search on each.

Rules of this file: no monotonicity in the number of devices is assumed, so nothing is bisected. For the fewest
devices, sub-clusters are searched from the smallest on, until one meets the deadline. For the least cost, all
sub-clusters are searched; a search stops once none of its plans can be cheaper than the best so far. Costs within the
tolerance of a tie (TIE) count as equal; the faster sub-cluster is preferred.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Generic, Protocol, TypeVar

from hocket.errors import InputError, RefusedError
from hocket.hardware.parts import Subcluster
from hocket.planning.goals.goal import Goal, GoalValue, worth
from hocket.planning.search.result import TIE
from hocket.util.units import show_days

F = TypeVar("F", bound="PartResult")
F_co = TypeVar("F_co", bound="PartResult", covariant=True)
NO_FIT, SLOW, DEAR = "nothing fits", "too slow", "dearer"


class PartSearch(Protocol[F_co]):
    """Search for the best plan on one sub-cluster."""

    def least_s(self, part: Subcluster) -> float:
        """Cheap lower bound of an iteration in seconds; infinite if nothing fits."""

    def search(self, part: Subcluster, ceiling_s: float) -> tuple[F_co, float] | None:
        """Search a sub-cluster for its best plan.

        Arguments:
            ceiling_s: longest iteration that is of use, in seconds.

        Returns:
            The search result and the seconds of its best iteration; None if all plans are slower than the ceiling.

        Raises:
            RefusedError: nothing fits.
        """


@dataclass(frozen=True)
class PartTrial(Generic[F]):
    """A sub-cluster that was considered.

    Attributes:
        found, worth: result of the search on the sub-cluster, and value of the best plan; None if there is no result.
        why: reason why the best plan does not serve the goal, or there is no result: NO_FIT, SLOW or DEAR. Empty if
            the plan serves the goal.
    """

    part: Subcluster
    found: F | None
    worth: GoalValue | None
    why: str = ""


@dataclass(frozen=True)
class SubclusterSearch(Generic[F]):
    """Sub-clusters that were considered for a goal.

    Attributes:
        tried: the sub-clusters, fewest devices first.
        best: the sub-cluster that serves the goal best; None if none does.
        left: number of further sub-clusters, which were not considered because a smaller one serves the goal.
    """

    goal: Goal
    tried: tuple[PartTrial[F], ...]
    best: PartTrial[F] | None
    left: int

    @property
    def chosen(self) -> F:
        """Search result of the best sub-cluster.

        Raises:
            RefusedError: no sub-cluster serves the goal; the message names the nearest.
        """
        if self.best is not None and self.best.found is not None:
            return self.best.found
        met = f"completion within {show_days(self.goal.deadline_s)}" if self.goal.deadline_s else "the goal"
        near = min(self.tried, key=_least_s, default=None)
        if near is not None and near.worth is not None and near.worth.training_s:
            least_s = near.worth.training_s * _least_s(near) / near.worth.iteration_s
            found = f"{show_days(least_s)} at best, on {near.part.cluster.name}"
            raise RefusedError("plan", found, met, "Give more devices or more time, or train on fewer samples.")
        raise RefusedError("plan", f"no plan fits on any of {len(self.tried)} sub-clusters", met, "Give more devices.")


class PredictedPlan(Protocol):
    """A plan with a prediction."""

    @property
    def label(self) -> str:
        """Label in a few words."""

    @property
    def iteration_s(self) -> float:
        """Predicted seconds of an iteration, which trains one batch."""


class PartResult(Protocol):
    """Result of a search for the best plan on one sub-cluster."""

    @property
    def best(self) -> PredictedPlan:
        """The best plan on the sub-cluster."""

    @property
    def written(self) -> PredictedPlan:
        """The best plan, with the prediction that its plan file contains."""

    @property
    def candidates(self) -> Sequence[PredictedPlan]:
        """All simulated plans. Some may be slightly faster than the best, within a tie."""


@dataclass(frozen=True)
class Planned(Generic[F]):
    """Result of planning for a goal.

    Attributes:
        batch_size: samples of an update.
        found: search result on the chosen sub-cluster.
        part: the chosen sub-cluster.
        parting: all sub-clusters that were considered; None if only the whole cluster was searched.
    """

    goal: Goal
    batch_size: int
    found: F
    part: Subcluster
    parting: SubclusterSearch[F] | None = None

    @property
    def worth(self) -> GoalValue:
        """Value of the best plan for the goal.

        Raises:
            RefusedError: nothing fits.
        """
        seconds = self.found.written.iteration_s
        return worth(self.goal, self.batch_size, seconds, self.part.devices, self.part.usd_per_hour)


def planned_part(parting: SubclusterSearch[F], batch_size: int) -> Planned[F]:
    """Search result on the chosen sub-cluster.

    Raises:
        RefusedError: no sub-cluster serves the goal.
    """
    found = parting.chosen
    part = next(one.part for one in parting.tried if one.found is found)
    return Planned(parting.goal, batch_size, found, part, parting)


def part_for(
    goal: Goal,
    parts: Sequence[Subcluster],
    batch_size: int,
    asks: PartSearch[F],
    progress: Callable[[int, int, str], None] | None = None,
) -> SubclusterSearch[F]:
    """Find the sub-cluster that serves a goal best.

    Arguments:
        parts: sub-clusters, fewest devices first.
        asks: search on one sub-cluster.
        progress: called with (searched sub-clusters, all sub-clusters, name of the next).

    Raises:
        InputError: costs are compared and a price is not known.
    """
    for part in parts:
        if goal.objective == "cost" and part.usd_per_hour is None:
            expected = "the price of every device, because costs are compared"
            step = "Write `price_usd_per_hour`, dollars an hour for one device, into the cluster file."
            raise InputError("price_usd_per_hour", f"none, on {part.cluster.name}", expected, step)
    tried: list[PartTrial[F]] = []
    # The whole cluster comes first: its cost lets the other searches stop early.
    order = [parts[-1], *parts[:-1]] if goal.objective == "cost" else parts
    for number, part in enumerate(order):
        best = _best(tried)
        if goal.objective == "devices" and best is not None and part.devices > best.part.devices:
            break
        if progress:
            progress(number, len(parts), part.cluster.name)
        tried.append(_ask(goal, part, batch_size, asks, _useful_s(tried, part, batch_size, goal)))
    if progress:
        progress(len(parts), len(parts), "done")
    if goal.objective == "cost":
        most = max((samples_per_usd(one) for one in tried if not one.why), default=0.0)
        tried = [_dearer(one, most) for one in tried]
    elif _best(tried) is None:
        tried = _how_far(goal, tried, batch_size, asks)
    tried.sort(key=lambda one: one.part.devices)
    return SubclusterSearch(goal, tuple(tried), _best(tried), len(parts) - len(tried))


def _ask(goal: Goal, part: Subcluster, batch_size: int, asks: PartSearch[F], useful_s: float) -> PartTrial[F]:
    """Search a sub-cluster, unless its lower bound shows that it does not help.

    Arguments:
        useful_s: longest iteration with which the cost may still be the lowest, in seconds.
    """
    needed_s, least_s = goal.ceiling_s(batch_size), asks.least_s(part)
    ceiling_s = min(needed_s, useful_s)
    if least_s > ceiling_s:
        return PartTrial(part, None, None, NO_FIT if least_s == inf else SLOW if least_s > needed_s else DEAR)
    try:
        answer = asks.search(part, ceiling_s)
    except RefusedError:
        return PartTrial(part, None, None, NO_FIT)
    if answer is None:
        return PartTrial(part, None, None, SLOW if ceiling_s == needed_s else DEAR)
    found, iteration_s = answer
    measured = worth(goal, batch_size, iteration_s, part.devices, part.usd_per_hour)
    return PartTrial(part, found, measured, SLOW if iteration_s > needed_s else "")


def _how_far(goal: Goal, tried: Sequence[PartTrial[F]], batch_size: int, asks: PartSearch[F]) -> list[PartTrial[F]]:
    """Search the sub-clusters that are too slow again, without the deadline.

    The largest is searched first. The results show how far each sub-cluster is from the deadline.
    """
    found, anytime = list(tried), replace(goal, deadline_s=None, objective="time")
    least_s = min(map(_least_s, found), default=inf)
    for place, one in reversed(list(enumerate(tried))):
        if one.why == SLOW and one.found is None:
            again = _ask(anytime, one.part, batch_size, asks, least_s)
            if again.found is not None:
                found[place] = replace(again, why=SLOW)
                least_s = min(least_s, _least_s(again))
    return found


def _dearer(one: PartTrial[F], most: float) -> PartTrial[F]:
    """The trial, marked as dearer if it gives fewer samples for a dollar."""
    dear = one.worth is not None and not one.why and samples_per_usd(one) * (1 + TIE) < most
    return replace(one, why=DEAR) if dear else one


def _useful_s(tried: Sequence[PartTrial[F]], part: Subcluster, batch_size: int, goal: Goal) -> float:
    """Longest iteration on a sub-cluster that costs no more than the best so far.

    Returns:
        Seconds; infinite if costs are not compared, or no cost is known yet.
    """
    usd_per_s = (part.usd_per_hour or 0.0) / 3600
    dollar = max((samples_per_usd(one) for one in tried if not one.why), default=0.0)
    if goal.objective != "cost" or not dollar or not usd_per_s:
        return inf
    return batch_size / dollar * (1 + TIE) / usd_per_s


def _best(tried: Sequence[PartTrial[F]]) -> PartTrial[F] | None:
    """The fastest of the sub-clusters that serve the goal; None if none does."""
    serving = [one for one in tried if one.worth is not None and not one.why]
    return min(serving, key=_seconds, default=None)


def samples_per_usd(one: PartTrial[F]) -> float:
    """Samples for a dollar; 0 if unknown."""
    return 0.0 if one.worth is None else one.worth.samples_per_usd or 0.0


def _seconds(one: PartTrial[F]) -> float:
    return inf if one.worth is None else one.worth.iteration_s


def _least_s(one: PartTrial[F]) -> float:
    """Fastest iteration found on a sub-cluster, without regard to ties."""
    return min((plan.iteration_s for plan in one.found.candidates), default=inf) if one.found is not None else inf
