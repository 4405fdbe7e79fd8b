"""Goals for analytic models: plan on the whole cluster, or on its best part.

Rules of this file: deterministic. A lower bound of the iteration time comes first, for each sub-cluster: computation
without any waiting, infinite if device memory is too small for the model's state (least_memory.py). The sub-cluster is
searched only if the bound is short enough for the goal.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import inf

from hocket.errors import InputError, RefusedError
from hocket.hardware.cluster import Cluster
from hocket.hardware.groups import fits, grouped
from hocket.hardware.parts import Subcluster, parts, whole
from hocket.planning.goals.goal import Goal, equation_4_4_s
from hocket.planning.goals.least_memory import room_of, state_of_model
from hocket.planning.goals.subclusters import Planned, part_for, planned_part
from hocket.planning.mesh.model_profiles import SizedSpace, sizes_of
from hocket.planning.mesh.plan_model import SizedSearch, search_sizes
from hocket.planning.search.request import PlanRequest
from hocket.profiling.analytic.transformer import Transformer
from hocket.util.units import show_count


def by_equation_4_4_s(planned: Planned[SizedSearch]) -> float | None:
    """Seconds to train on all samples of the goal, by equation 4.4 of Narayanan's dissertation.

    Operations per second of a device are taken from the best plan.

    Returns:
        None if the goal has no number of samples.
    """
    if planned.goal.samples is None:
        return None
    found, devices = planned.found, planned.part.devices
    achieved = found.model.model_flops(found.batch_size) / found.written.iteration_s / devices
    used = found.model.active_parameters
    return equation_4_4_s(planned.goal.samples * found.model.sequence, used, devices, achieved)


def plan_sizes(
    model: Transformer,
    cluster: Cluster,
    request: PlanRequest,
    goal: Goal,
    progress: Callable[[int, int, str], None] | None = None,
) -> Planned[SizedSearch]:
    """Plan an analytic model for a goal.

    Raises:
        InputError: a tensor-parallel size that does not divide the model or the cluster, an unknown strategy, a device
            type without a rate for the number format, microbatches larger than the batch, or a field that is only for
            profiles. Also, costs are compared and a price is not known.
        RefusedError: no part of the cluster serves the goal.
    """
    request.check_for_model()
    batch_size = request.batch_size
    if goal.objective == "time":
        if progress:
            progress(0, 0, f"ways to divide {show_count(cluster.devices, 'device')} for a batch of {batch_size}")
        found = search_sizes(model, cluster, request)
        return Planned(goal, batch_size, found, whole(cluster))
    for width in request.tensors:
        grouped(cluster, width)  # a size that is impossible on the whole cluster is the user's mistake
    asks = _Asks(model, request)
    return planned_part(part_for(goal, parts(cluster), batch_size, asks, progress), batch_size)


class _Asks:
    """Searches on sub-clusters; each device type's profile is computed once."""

    def __init__(self, model: Transformer, request: PlanRequest) -> None:
        self.model, self.request = model, request
        self._last: SizedSpace | None = None
        self._work: dict[str, float] = {}

    def least_s(self, part: Subcluster) -> float:
        """Lower bound of an iteration's seconds: all devices compute all the time.

        It is infinite if the model's state exceeds the memory of all devices together (least_memory.py), and 0 for a
        sub-cluster with several device types.
        """
        cluster = part.cluster
        if state_of_model(self.model, self.request)[0] > room_of(cluster):
            return inf
        kinds = [cluster.type_of(device).name for device in range(cluster.devices)]
        if len(set(kinds)) > 1:
            return 0.0
        if kinds[0] not in self._work:
            self._work[kinds[0]] = self._work_s(cluster)
        return self._work[kinds[0]] * self.request.batch_size / cluster.devices

    def _work_s(self, cluster: Cluster) -> float:
        """Least device-seconds of a sample, on the first device type of a cluster."""
        request = self.request
        one = SizedSpace(self.model, cluster, request)
        if self._last is not None:
            one.share(self._last)
        self._last = one
        sizes, least = sizes_of(request), inf
        widths = request.tensors or range(1, self.model.heads + 1)
        for width, along in product(widths, request.sequence_parallel or (False, True)):
            try:
                self.model.check_tensor(width)
                profile = one.profile(width, "none", sizes, along)
            except InputError:
                continue
            for size in sizes:
                busy = sum(profile.column(name, size).sum() for name in ("forward_s", "backward_s"))
                least = min(least, width * float(busy) / size)
        return least

    def search(self, part: Subcluster, ceiling_s: float) -> tuple[SizedSearch, float] | None:
        """Search the layouts of the model on one sub-cluster, as `search_sizes` does.

        Arguments:
            ceiling_s: longest iteration that is of use, in seconds.

        Returns:
            The search result and the seconds of the best iteration; None if all plans are slower than the ceiling.

        Raises:
            RefusedError: no tensor-parallel size of the request divides the sub-cluster, or the model does not fit it.
        """
        fitting = tuple(width for width in self.request.tensors if fits(part.cluster, width))
        if self.request.tensors and not fitting:
            widths = ", ".join(map(str, self.request.tensors))
            expected = f"one that divides the {part.cluster.devices} devices of the sub-cluster into groups"
            raise RefusedError("tensor", f"tensor-parallel sizes {widths}", expected)
        request = replace(self.request, tensors=fitting)
        try:
            found = search_sizes(self.model, part.cluster, request, ceiling_s=ceiling_s, like=self._last)
        except InputError as error:
            if error.place != "cluster":
                raise
            raise RefusedError("cluster", error.found, error.expected) from None  # devices of several types
        self._last = found
        if not found.meshes.found and found.meshes.behind is not None:
            return None
        return found, found.best.iteration_s
