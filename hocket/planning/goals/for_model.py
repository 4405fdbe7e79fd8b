"""Goals for analytic models: plan on the whole cluster, or on its best part.

Rules of this file: deterministic. What no plan on a part can be below is worked out first: its devices' seconds without any waiting,
and their memory beside the model's state; only then is the part searched.
"""

from collections.abc import Callable
from itertools import product
from math import inf
from typing import Any

from hocket.errors import InputError, RefusedError
from hocket.hardware.cluster import Cluster
from hocket.hardware.groups import fits, grouped
from hocket.hardware.parts import Subcluster, parts, whole
from hocket.planning.goals.goal import Goal, equation_4_4_s
from hocket.planning.goals.subclusters import Planned, part_for, planned_part
from hocket.planning.mesh.model_profiles import SizedSpace
from hocket.planning.mesh.plan_model import IN_16_BITS, SIZES, SizedSearch, search_sizes
from hocket.profiling.analytic.transformer import Transformer
from hocket.util.units import show_count


def by_equation_4_4_s(planned: Planned[SizedSearch]) -> float | None:
    """Training seconds by the dissertation's closed form, from the best plan's achieved rate; None without samples."""
    if planned.goal.samples is None:
        return None
    found, devices = planned.found, planned.part.devices
    achieved = found.model.model_flops(found.batch_size) / found.written.iteration_s / devices
    return equation_4_4_s(planned.goal.samples * found.model.sequence, found.model.parameters, devices, achieved)


def plan_sizes(
    model: Transformer,
    cluster: Cluster,
    batch_size: int,
    goal: Goal,
    progress: Callable[[int, int, str], None] | None = None,
    **options: Any,
) -> Planned[SizedSearch]:
    """Plan an analytic model for a goal.

    Arguments:
        options: of `search_sizes`.

    Raises:
        InputError: as `search_sizes`; costs are compared and a price is not known; a limit of the amplification.
        RefusedError: no part of the cluster serves the goal.
    """
    if options.pop("amplification_limit", None) is not None:
        raise InputError(
            "amplification_limit",
            "an analytic model, for which every plan uses all devices",
            "a profile, where each layer may use its own number of devices",
            "Profile the model (`hocket profile job.py --device-type` needs no device), or ask for few devices with --objective cost.",
        )
    if goal.objective == "time":
        if progress:
            progress(0, 0, f"ways to divide {show_count(cluster.devices, 'device')} for a batch of {batch_size}")
        found = search_sizes(model, cluster, batch_size, **options)
        return Planned(goal, batch_size, found, whole(cluster))
    for width in options.get("tensors", ()):
        grouped(cluster, width)  # what the whole cannot have is the user's mistake
    asks = _Asks(model, batch_size, options)
    return planned_part(part_for(goal, parts(cluster), batch_size, asks, progress), batch_size)


class _Asks:
    """Searches on parts; profiles are worked out once for each device type."""

    def __init__(self, model: Transformer, batch_size: int, options: dict[str, Any]) -> None:
        self.model, self.batch_size, self.options = model, batch_size, options
        self._last: SizedSpace | None = None
        self._work: dict[str, float] = {}

    def least_s(self, part: Subcluster) -> float:
        """Seconds with all devices busy all the time; infinite if the model's state exceeds their memory."""
        cluster, numbers = part.cluster, self.options.get("precision", IN_16_BITS)
        each = numbers.weight_bytes + numbers.gradient_bytes + numbers.optimizer_bytes
        if each * self.model.parameters > sum(cluster.capacity_bytes(d) for d in range(cluster.devices)):
            return inf
        kinds = [cluster.type_of(device).name for device in range(cluster.devices)]
        if len(set(kinds)) > 1:
            return 0.0
        if kinds[0] not in self._work:
            self._work[kinds[0]] = self._work_s(cluster)
        return self._work[kinds[0]] * self.batch_size / cluster.devices

    def _work_s(self, cluster: Cluster) -> float:
        """Device seconds of a sample, at the least."""
        numbers, calibration = self.options.get("precision", IN_16_BITS), self.options.get("calibration")
        one = SizedSpace(self.model, cluster, self.batch_size, numbers, calibration)
        if self._last is not None:
            one.share(self._last)
        self._last = one
        sizes = self.options.get("microbatch_sizes") or tuple(b for b in SIZES if b <= self.batch_size)
        least = inf
        widths = self.options.get("tensors") or range(1, self.model.heads + 1)
        for width, along in product(widths, self.options.get("sequence_parallel", (False, True))):
            try:
                self.model.check_tensor(width)
                profile = one.profile(width, "none", tuple(sizes), along)
            except InputError:
                continue
            for size in sizes:
                busy = sum(profile.column(name, size).sum() for name in ("forward_s", "backward_s"))
                least = min(least, width * float(busy) / size)
        return least

    def search(self, part: Subcluster, ceiling_s: float) -> tuple[SizedSearch, float] | None:
        """Search like `search_sizes`; a sub-cluster that cannot run the model is refused."""
        options = dict(self.options)
        if options.get("tensors"):
            options["tensors"] = tuple(width for width in options["tensors"] if fits(part.cluster, width))
            if not options["tensors"]:
                raise RefusedError(
                    "tensor", "no tensor-parallel groups of these sizes", "sizes that divide the sub-cluster"
                )
        try:
            found = search_sizes(
                self.model, part.cluster, self.batch_size, ceiling_s=ceiling_s, like=self._last, **options
            )
        except InputError as error:
            if error.place != "cluster":
                raise
            raise RefusedError("cluster", error.found, error.expected) from None  # devices of several types
        self._last = found
        if not found.meshes.found and found.meshes.behind is not None:
            return None
        return found, found.best.iteration_s
