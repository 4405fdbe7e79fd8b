"""Planning of analytic models, which are known by their sizes only.

Steps: estimate profiles for the cluster's device types, search parallel layouts, write the best plan.

Rules of this file:
- Nothing is measured or allocated. The search is deterministic.
- The model's operations are three times those of its forward, without recomputation.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from math import inf
from pathlib import Path

from hocket.errors import InputError, RefusedError
from hocket.hardware.cluster import Cluster, Node
from hocket.hardware.groups import grouped
from hocket.planning.buckets.assign import Rebucketed, rebucketed
from hocket.planning.load import check_profile_replaced, profile_beside
from hocket.planning.mesh.layout import UNITS
from hocket.planning.mesh.model_profiles import SizedSpace, considered_meshes, sizes_of
from hocket.planning.mesh.search.result import LayoutSearch
from hocket.planning.mesh.search.search import search_meshes
from hocket.planning.mesh.search.simulated import SimulatedLayout
from hocket.planning.plan import Plan
from hocket.planning.predict.predict import predict_iteration
from hocket.planning.predict.update_semantics import UpdateSemantics, updates_of
from hocket.planning.search.make_plan import make_plan
from hocket.planning.search.request import AUTO, PlanRequest
from hocket.profiling.analytic.transformer import Transformer
from hocket.program.passes.borders import stage_shapes
from hocket.util.compatibility import Feature, check_together
from hocket.util.units import show_shortage


class SizedSearch(SizedSpace):
    """Search over the parallel layouts of a model that is known by its sizes only (an analytic model).

    The object holds the result of the search.

    Attributes:
        meshes: layouts that were simulated, and counts of refused layouts.
        search_s: seconds that the search took.
    """

    def __init__(self, model: Transformer, cluster: Cluster, request: PlanRequest) -> None:
        super().__init__(model, cluster, request)
        self.meshes = LayoutSearch((), 0, 0)
        self.search_s = 0.0

    @cached_property
    def best(self) -> SimulatedLayout:
        """The best layout that is proved to fit with any timing.

        Raises:
            RefusedError: no layout fits; the message has the nearest miss.
        """
        if self.meshes.found:
            return self.meshes.found[0]
        nearest = self.meshes.nearest
        if nearest is None:
            what = f"a batch of {self.batch_size} on {self.cluster.devices} devices"
            step = "Use a batch that is a multiple of microbatch size times replicas, other microbatch sizes, or another --tensor."
            raise RefusedError("plan", f"no layout for {what}", "one microbatch size for every replica", step)
        needed, available = show_shortage(nearest.bytes, nearest.capacity_bytes)
        needs = f"{nearest.mesh} needs at least {needed} on a device of {available}"
        step = "Give more devices, more memory or a smaller batch, or recompute more (--recompute full)."
        raise RefusedError("plan", f"nothing that fits; nearest is {needs}", "a plan that fits", step)

    @property
    def candidates(self) -> tuple[SimulatedLayout, ...]:
        """Layouts that were found, best first."""
        return self.meshes.found

    def plan(self, found: SimulatedLayout, profile_path: str = "") -> Plan:
        """Plan of a layout, with its prediction.

        If gradient buckets chosen for the best layout make it faster, its plan has these. All other plans have the
        default buckets, which close at a fixed number of bytes.

        Arguments:
            profile_path: path of the profile that the plan names.
        """
        if found is self.best and self._rebucketed is not None:
            return replace(self._rebucketed.plan, profile=profile_path)
        return replace(self._with_one_size if found is self.best else self._plan(found), profile=profile_path)

    @cached_property
    def written(self) -> SimulatedLayout:
        """The best layout, with the prediction that its plan file contains.

        It may differ from the prediction of the search. The search extrapolates a long batch from shorter ones. The
        plan is simulated whole if it is short enough, and may have other gradient buckets.

        Raises:
            RefusedError: as `best`.
        """
        predicted = self.plan(self.best).predicted
        return self.best if predicted is None else replace(self.best, predicted=predicted)

    def told(self) -> tuple[SimulatedLayout, ...]:
        """All layouts to show: the best one (`written`), then the others by time."""
        rest = (one for one in self.candidates if one is not self.best)
        return (self.written, *sorted(rest, key=lambda one: one.iteration_s))

    @cached_property
    def _with_one_size(self) -> Plan:
        """The best plan with the default gradient buckets."""
        return self._plan(self.best)

    @cached_property
    def _rebucketed(self) -> Rebucketed | None:
        if self.request.buckets != AUTO:
            return None
        return rebucketed(self._with_one_size, self.profile_of(self.best))

    @property
    def buckets_text(self) -> str:
        """Sentence about the gradient buckets of the best plan; empty for default buckets."""
        return self._rebucketed.text if self._rebucketed is not None else ""

    def _plan(self, found: SimulatedLayout) -> Plan:
        mesh = found.mesh
        profile = self.profile_of(found)
        space, choice = found.space.choice(mesh, self.batch_size)
        plan = replace(
            make_plan(space, mesh.strategy, choice),
            cluster=self.cluster,
            tensor=mesh.tensor,
            slices=mesh.tensor > 1 and found.space.slices,
            sequence_parallel=mesh.sequence_parallel,
            profile_digest=profile.digest,
        )
        return replace(plan, predicted=predict_iteration(plan, profile))

    def updates(self, found: SimulatedLayout) -> UpdateSemantics:
        """Differences between a layout's weight updates and those of training in one process."""
        space, choice = found.space.choice(found.mesh, self.batch_size)
        shapes = stage_shapes(space.profile, choice.stages)
        return updates_of(found.mesh.strategy, shapes, self.batch_size, found.mesh.samples, choice.options)

    def save(self, path: str | Path) -> Path:
        """Write the best plan, and its profile beside it.

        Returns:
            Path of the profile.

        Raises:
            RefusedError: as `best`.
            InputError: the profile would replace a measured one.
        """
        beside = profile_beside(Path(path))
        check_profile_replaced(beside)
        self.profile_of(self.best).save(beside)
        self.plan(self.best, beside.name).save(path)
        return beside

    def flops_per_s(self, found: SimulatedLayout) -> float:
        """Floating-point operations of the model per second and device.

        Recomputation does not count.
        """
        forward = float(self.profile_of(found).column("flops", found.mesh.samples).sum()) / found.mesh.samples
        return 3 * forward * found.mesh.tensor * self.batch_size / found.iteration_s / self.cluster.devices

    def share_of_peak(self, found: SimulatedLayout) -> float:
        """Operations per device and second, as a share of the devices' mean peak rate."""
        cluster, dtype = self.cluster, self.request.precision.dtype
        nodes = cluster.nodes or (Node(cluster.device_type, cluster.devices),)
        rates = {device.name: device.flops_per_s[dtype] for device in self.devices}
        whole = sum(node.devices * rates[node.device_type] for node in nodes)
        return self.flops_per_s(found) * cluster.devices / whole


def search_sizes(
    model: Transformer,
    cluster: Cluster,
    request: PlanRequest,
    *,
    ceiling_s: float = inf,
    like: SizedSpace | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> SizedSearch:
    """Search all parallel layouts of a model on a cluster.

    Arguments:
        ceiling_s: longest iteration that is of use, in seconds.
        like: a space of the same model; its profiles are used again if its device types are the same.

    Raises:
        InputError: a tensor-parallel size that does not divide the model or the cluster, an unknown strategy, a device
            type without a rate for the number format, microbatches larger than the batch, or a field that is only for
            profiles.
    """
    began = clock()
    request.check_for_model()
    sizes = sizes_of(request)
    for size in sizes:
        if not 1 <= size <= request.batch_size:
            raise InputError("microbatch_sizes", str(size), f"a number from 1 to {request.batch_size} (the batch size)")
    considered_meshes(request)
    if model.tied and (set(request.shards) == {"full"} or set(request.strategies) == {UNITS}):
        check_together(
            "plan", Feature.SHARD_FULL, Feature.TIED, found=f"{model.name}, whose output shares the embedding's weights"
        )
    for width in request.tensors:
        model.check_tensor(width)
        grouped(cluster, width)
    found = SizedSearch(model, cluster, request)
    if like is not None:
        found.share(like)
    found.profile(
        request.tensors[0] if request.tensors else 1, "none", sizes
    )  # raises the error of an unsuitable device type
    found.meshes = search_meshes(found.spaces(cluster, request), request.batch_size, ceiling_s)
    found.search_s = clock() - began
    return found
