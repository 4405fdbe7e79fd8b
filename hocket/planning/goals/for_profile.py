"""Goals for profiled jobs: plan on the whole cluster, or on its best part."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster
from hocket.hardware.groups import fits, grouped
from hocket.hardware.parts import Subcluster, parts, whole
from hocket.planning.goals.goal import Goal
from hocket.planning.goals.subclusters import Planned, part_for, planned_part
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.result import Search
from hocket.planning.search.search import search_widths
from hocket.profiling.profile import ModelProfile


def plan_profile(
    profiles: Mapping[str, ModelProfile],
    cluster: Cluster,
    request: PlanRequest,
    goal: Goal,
    progress: Callable[[int, int, str], None] | None = None,
) -> Planned[Search]:
    """Plan a profiled job for a goal.

    Arguments:
        profiles: profiles by the path that plans name: the job's profile, and profiles of its tensor-parallel ranks
            (`search_widths`).

    Raises:
        InputError: an unknown strategy, an asynchronous one if only synchronous ones are wanted, or costs are compared
            and a price is not known.
        RefusedError: no part of the cluster serves the goal.
    """
    if goal.objective == "time":
        found = search_widths(profiles, cluster, request, progress)
        return Planned(goal, request.batch_size, found, whole(cluster))
    for profile in profiles.values():
        grouped(cluster, profile.tensor)  # a size that is impossible on the whole cluster is the user's mistake
    asks, batch_size = _Asks(profiles, request), request.batch_size
    return planned_part(part_for(goal, parts(cluster), batch_size, asks, progress), batch_size)


class _Asks:
    """Search for the best plan of a profiled job on each sub-cluster (a `PartSearch`).

    A plan may leave devices of the sub-cluster unused; they are paid for nevertheless.
    """

    def __init__(self, profiles: Mapping[str, ModelProfile], request: PlanRequest) -> None:
        self.profiles, self.request = profiles, request

    def least_s(self, part: Subcluster) -> float:
        """Zero: no lower bound is known before the search."""
        return 0.0

    def search(self, part: Subcluster, ceiling_s: float) -> tuple[Search, float]:
        """Search like `search_widths`, with the profiles that fit the sub-cluster.

        Profiles with a tensor-parallel size that does not divide the sub-cluster are left out. Plans slower than the
        ceiling are found as well, and sorted last.

        Returns:
            The search result and the seconds of the best iteration.
        """
        fitting = {path: one for path, one in self.profiles.items() if fits(part.cluster, one.tensor)}
        if not fitting:
            widths = ", ".join(sorted({str(one.tensor) for one in self.profiles.values()}))
            expected = f"one that divides the {part.cluster.devices} devices of the sub-cluster into groups"
            raise RefusedError("tensor", f"profiles of the tensor-parallel sizes {widths}", expected)
        found = search_widths(fitting, part.cluster, self.request)
        order = sorted(found.candidates, key=lambda one: one.iteration_s > ceiling_s)
        found = replace(found, candidates=tuple(order))
        return found, found.best.iteration_s
