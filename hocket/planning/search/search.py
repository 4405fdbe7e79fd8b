"""The search: every strategy's choices, ordered by a bound, decided by simulation, under every device's memory limit.

Rules of this file: deterministic to the byte; what looks equal within the tolerance goes to fewer stages, then fewer
devices, then plain data parallelism. Among all that is offered and fits, nothing is faster than the best by more than the
tolerance.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from hocket.cost.analytic.tensor_group import of_group
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster
from hocket.hardware.groups import grouped
from hocket.planning.buckets.assign import AUTO, Rebucketed, best_few, kept_by_buckets
from hocket.planning.burst.amplification import alone_s as alone_of
from hocket.planning.burst.amplification_limit import Tolerance, alone_words
from hocket.planning.plan import Plan
from hocket.planning.predict.update_semantics import considered
from hocket.planning.search.failures import failed
from hocket.planning.search.notes import note_of_extrapolation, notes_of
from hocket.planning.search.profiled_candidates import ProfiledCandidates
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.result import Evaluated, Refused, Search, joined, ordered
from hocket.planning.search.torch_compile import compiled, told
from hocket.planning.swapping.baselines import BASELINES, plans_with_virtual_memory
from hocket.planning.swapping.candidates import Packs, within
from hocket.planning.swapping.placement import left_out
from hocket.planning.swapping.search import SWAPPING, plans_of_packs
from hocket.profiling.profile import ModelProfile
from hocket.strategies.base.search_space import MAX_FORWARDS, SearchSpace
from hocket.strategies.base.strategy import members, searched
from hocket.util.compatibility import Feature, check_together

Progress = Callable[[int, int, str], None]
"""Told (done, total, what is being done)."""


def search(
    profile: ModelProfile,
    cluster: Cluster,
    request: PlanRequest,
    *,
    profile_path: str = "",
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Search:
    """Find the best way to train a profiled job on a cluster.

    Of one of several tensor-parallel devices (`profile.tensor`) it is the best way for groups of so many.

    Arguments:
        profile_path: that plans name.
        progress: called with (done, total, what) of each step of the search; a total of 0 is not known.

    Raises:
        InputError: an unknown strategy, one that is not synchronous where only those are wanted, or what is for analytic models only.
    """
    return search_widths({profile_path: profile}, cluster, request, progress, clock)


def search_widths(
    profiles: Mapping[str, ModelProfile],
    cluster: Cluster,
    request: PlanRequest,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Search:
    """The best way among several widths of tensor-parallel groups; otherwise like `search`.

    Arguments:
        profiles: by path, one of each width, on slices of the sequence and not, of one job.

    Raises:
        InputError: as `search`; or two profiles are of one width, or of different jobs.
    """
    request.check_for_profile()
    first, *others = profiles.items()
    paths = {(first[1].tensor, first[1].sequence_parallel): first[0]}
    for path, profile in others:
        kind = profile.tensor, profile.sequence_parallel
        if kind in paths:
            found = f"of one of {profile.tensor} tensor-parallel devices, as {paths[kind]} is"
            raise InputError(path, found, "another width", "Measure it with `hocket profile --tensor`.")
        if profile.digest_of_model != first[1].digest_of_model:
            raise InputError(path, "a profile of another model", f"one of the model of {first[0]}")
        paths[kind] = path
    limit = request.amplification_limit
    alone_s = 0.0 if limit is None else alone_of(profiles.values(), cluster, request.batch_size)
    widths = [_Width(profile, path, cluster, request, alone_s) for path, profile in profiles.items()]
    return joined([one.search(progress, clock) for one in widths])


@dataclass(frozen=True)
class _Width:
    """Search for groups of one width.

    Attributes:
        path: of the profile. alone_s: seconds of one device alone with the same batch, where the amplification is limited.
    """

    profile: ModelProfile
    path: str
    cluster: Cluster
    request: PlanRequest
    alone_s: float

    def search(self, progress: Progress | None, clock: Callable[[], float]) -> Search:
        """The best of every strategy's choices, or of the baselines of a swap policy."""
        began = clock()
        profile, cluster, request = self.profile, self.cluster, self.request
        largest = profile.microbatch_sizes[-1]
        if request.batch_size > MAX_FORWARDS * largest:  # beyond it neither schedules nor figures mean anything
            expected = f"at most {MAX_FORWARDS * largest}, {MAX_FORWARDS} microbatches of the largest that was measured"
            step = "Profile larger microbatches with `hocket profile -b`."
            raise InputError("batch_size", str(request.batch_size), expected, step)
        chosen = considered(request.strategies, request.synchronous, members(), searched())
        if request.swap is not None:
            baselines = self._baselines(request.swap, progress)
            order = tuple(ordered(baselines.candidates))
            return Search(order, tuple(baselines.refused), clock() - began, baselines.considered)
        tried = ProfiledCandidates(self.space, self.path, self.tolerance, self._rebucketed, progress)
        for name in chosen:
            tried.offer(name)
        tried.run()
        found = ordered(_of_groups(tried.found, profile, cluster))
        notes = [*notes_of(profile, self.space, cluster), *note_of_extrapolation(profile, found[:1])]
        at = progress or (lambda done, total, what: None)
        if profile.compiled is not None:
            at(0, 0, "stages that are worth compiling")
            found = ordered(_compiled(one, profile, tried.refused) for one in found)
        if request.buckets == AUTO:
            at(0, 0, "buckets of gradients")
            found = ordered(best_few(found, profile, self.tolerance, tried.refused))
        if profile.compiled is not None and found:
            notes.append(told(found[0].plan, profile))
        packs = Packs()
        if (not request.strategies or SWAPPING in request.strategies) and any(r.missing_bytes for r in tried.refused):
            packs = self._packs(progress, min((one.iteration_s for one in found), default=inf))
            if packs.considered and (note := left_out(self.space.cluster)):
                notes.append(note)
        found = ordered([*found, *packs.candidates])
        refused = (*tried.refused, *packs.refused)
        return Search(tuple(found), refused, clock() - began, tried.considered + packs.considered, tuple(notes))

    @cached_property
    def space(self) -> SearchSpace:
        """Choices of strategies on the groups."""
        profile, request = self.profile, self.request
        group = grouped(self.cluster, profile.tensor, slices=not profile.sequence_parallel)
        sizes = tuple(request.microbatch_sizes)
        space = SearchSpace(of_group(profile, group), group.cluster, request.batch_size, sizes, shard=request.shard)
        if not profile.elementwise_step:
            profile.check_shard("shard", request.shard or "none")
            space = replace(space, shard="none")
        if request.buckets == AUTO:
            space = replace(space, rebuckets=True)
        elif not isinstance(request.buckets, str):
            space = replace(space, bucket_bytes=request.buckets)
        if self.tolerance is None:
            return space
        own_s = alone_of((space.profile,), space.cluster, space.batch_size)
        return replace(space, amplification_limit=self.tolerance.limit * self.alone_s / own_s)

    @cached_property
    def tolerance(self) -> Tolerance | None:
        """Limit on the device-seconds of plans; None if nobody asked for one."""
        limit = self.request.amplification_limit
        if limit is None:
            return None
        return Tolerance(limit, self.alone_s, self.profile.tensor, alone_words(self.cluster))

    def _rebucketed(self, plan: Plan) -> Rebucketed | None:
        if self.request.buckets != AUTO or self.tolerance is None:
            return None
        return kept_by_buckets(_of_group(plan, self.profile, self.cluster), self.profile, self.tolerance)

    def _packs(self, progress: Progress | None, others_s: float) -> Packs:
        """Plans that swap, which are for whole devices that are kept."""
        if self.profile.tensor > 1 or self.space.shard not in (None, "none"):
            return Packs()
        found = plans_of_packs(self.space, self.path, progress, others_s, self.tolerance is not None)
        return within(found, self.tolerance)

    def _baselines(self, policy: str, progress: Progress | None) -> Packs:
        """Plans with virtual memory alone."""
        space = self.space
        if space.shard not in (None, "none"):
            check_together("shard", Feature.SWAP, Feature(f"shard: {space.shard}"))
        if self.profile.tensor > 1:
            raise InputError("swap", "groups of devices", "plans that swap on whole devices")
        names = self.request.strategies or BASELINES
        return within(plans_with_virtual_memory(space, names, policy, self.path, progress), self.tolerance)


def _compiled(one: Evaluated, profile: ModelProfile, refused: list[Refused]) -> Evaluated:
    """The candidate with compiled stages where that is faster; unchanged if compilation fails."""
    try:
        return compiled(one, profile)
    except Exception as error:
        refused.append(failed(one.strategy, f"{one.config} compiled", error))
        return one


def _of_groups(candidates: list[Evaluated], profile: ModelProfile, cluster: Cluster) -> list[Evaluated]:
    """Candidates whose plans name the members' profile and the whole cluster."""
    if profile.tensor == 1:
        return candidates
    config = f"t{profile.tensor}{'s' if profile.sequence_parallel else ''}"
    return [
        replace(one, config=f"{one.config} {config}", plan=_of_group(one.plan, profile, cluster)) for one in candidates
    ]


def _of_group(plan: Plan, profile: ModelProfile, cluster: Cluster) -> Plan:
    if profile.tensor == 1:
        return plan
    along = profile.sequence_parallel
    whole = replace(plan, cluster=cluster, tensor=profile.tensor, profile_digest=profile.digest)
    return replace(whole, slices=not along, sequence_parallel=along)
