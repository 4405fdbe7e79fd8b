"""Search for the best plan of a profiled job.

Candidates of every strategy are ordered by a lower bound and decided by simulation, within every device's memory.

Rules of this file:
- The search is deterministic to the byte.
- Among ties, fewer stages win, then fewer devices, then plain data parallelism.
- No considered candidate that fits is faster than the best by more than the tolerance of a tie.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from hocket.cost.analytic.tensor_group import of_group
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster
from hocket.hardware.groups import grouped
from hocket.planning.buckets.assign import Rebucketed, best_few, kept_by_buckets
from hocket.planning.burst.amplification import alone_s as alone_of
from hocket.planning.burst.amplification_limit import Tolerance, alone_words
from hocket.planning.plan import Plan
from hocket.planning.predict.update_semantics import considered
from hocket.planning.search.failures import failed
from hocket.planning.search.notes import notes_of
from hocket.planning.search.profiled_candidates import ProfiledCandidates
from hocket.planning.search.read_once import with_read_once
from hocket.planning.search.request import AUTO, PlanRequest
from hocket.planning.search.result import Evaluated, Refused, Search, joined, ordered
from hocket.planning.search.torch_compile import compiled, told
from hocket.planning.swapping.baselines import BASELINES, plans_with_virtual_memory
from hocket.planning.swapping.candidates import Packs, within
from hocket.planning.swapping.placement import left_out
from hocket.planning.swapping.search import SWAPPING, plans_of_packs
from hocket.profiling.profile import ModelProfile
from hocket.strategies.base.search_space import MAX_FORWARDS, SearchSpace
from hocket.strategies.base.strategy import members, searched
from hocket.util.compatibility import Feature, check_together, conflict

Progress = Callable[[int, int, str], None]
"""Callback with (done, total, current step)."""


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

    For a profile of one tensor-parallel rank (`profile.tensor` > 1), the devices form groups of that size.

    Arguments:
        request: batch size, strategies and other options of the search.
        profile_path: path of the profile, as plans name it.
        progress: called with (done, total, step) for each step of the search; a total of 0 is unknown.
        clock: seconds, to measure the time of the search.

    Raises:
        InputError: an unknown strategy, an asynchronous one if only synchronous ones are wanted, or a field that is
            only for analytic models.
    """
    return search_widths({profile_path: profile}, cluster, request, progress, clock)


def search_widths(
    profiles: Mapping[str, ModelProfile],
    cluster: Cluster,
    request: PlanRequest,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Search:
    """Find the best way to train a profiled job on a cluster, with any of several tensor-parallel sizes.

    Arguments:
        profiles: profiles of one job, by path: at most one for each tensor-parallel size with sequence parallelism,
            and one without.
        request: batch size, strategies and other options of the search.
        progress: called with (done, total, step) for each step of the search; a total of 0 is unknown.
        clock: seconds, to measure the time of the search.

    Raises:
        InputError: an unknown strategy, an asynchronous one if only synchronous ones are wanted, a field that is only
            for analytic models, two profiles of the same size, or profiles of different jobs.
    """
    request.check_for_profile()
    first, *others = profiles.items()
    paths = {(first[1].tensor, first[1].sequence_parallel): first[0]}
    for path, profile in others:
        kind = profile.tensor, profile.sequence_parallel
        if kind in paths:
            found = f"a profile of one of {profile.tensor} tensor-parallel ranks, as {paths[kind]} is"
            raise InputError(path, found, "another tensor-parallel size", "Measure it with `hocket profile --tensor`.")
        if profile.digest_of_model != first[1].digest_of_model:
            raise InputError(path, "a profile of another model", f"one of the model of {first[0]}")
        paths[kind] = path
    limit = request.amplification_limit
    alone_s = 0.0 if limit is None else alone_of(profiles.values(), cluster, request.batch_size)
    widths = [_Width(profile, path, cluster, request, alone_s) for path, profile in profiles.items()]
    return joined([one.search(progress, clock) for one in widths])


@dataclass(frozen=True)
class _Width:
    """Search with tensor-parallel groups of one size.

    Attributes:
        path: path of the profile.
        alone_s: seconds of an iteration on one device with the same batch, if amplification is limited; 0 otherwise.
    """

    profile: ModelProfile
    path: str
    cluster: Cluster
    request: PlanRequest
    alone_s: float

    def search(self, progress: Progress | None, clock: Callable[[], float]) -> Search:
        """Search the candidates of every strategy, or the baselines of a swap policy."""
        began = clock()
        profile, cluster, request = self.profile, self.cluster, self.request
        _check_length(self.space)
        chosen = considered(request.strategies, request.synchronous, members(), searched())
        if request.swap is not None:
            baselines = self._baselines(request.swap, progress)
            result = self._result(ordered(baselines.candidates))
            return replace(
                result,
                refused=tuple(baselines.refused),
                considered=baselines.considered,
                search_s=clock() - began,
                notes=tuple(notes_of(result, self.space, cluster)),
            )
        tried = ProfiledCandidates(self.space, self.path, self.tolerance, self._rebucketed, progress)
        for name in chosen:
            tried.offer(name)
        tried.run()
        found = ordered(map(self._on_cluster, tried.found))
        notes = list(notes_of(self._result(found), self.space, cluster))
        at = progress or (lambda done, total, what: None)
        if profile.compiled is not None:
            at(0, 0, "stages worth compiling")
            found = ordered(_improved(one, compiled, "compiled", profile, tried.refused) for one in found)
        found = ordered(_improved(one, with_read_once, "read once", profile, tried.refused) for one in found)
        if request.buckets == AUTO:
            at(0, 0, "gradient buckets")
            found = ordered(best_few(self._result(found), self.tolerance, tried.refused))
        if profile.compiled is not None and found:
            notes.append(told(found[0].plan, profile))
        packs = Packs()
        if (not request.strategies or SWAPPING in request.strategies) and any(r.missing_bytes for r in tried.refused):
            packs = self._packs(progress, min((one.iteration_s for one in found), default=inf))
            if packs.considered and (note := left_out(self.space.cluster)):
                notes.append(note)
        return replace(
            self._result(ordered([*found, *packs.candidates])),
            refused=(*tried.refused, *packs.refused),
            considered=tried.considered + packs.considered,
            search_s=clock() - began,
            notes=tuple(notes),
        )

    def _result(self, candidates: Sequence[Evaluated]) -> Search:
        """Result with these candidates, without refusals, notes and seconds."""
        return Search(tuple(candidates), (), 0.0, 0, self.request, {self.path: self.profile})

    @cached_property
    def space(self) -> SearchSpace:
        """Search space of strategies; its devices are the tensor-parallel groups."""
        profile, request = self.profile, self.request
        group = grouped(self.cluster, profile.tensor, slices=not profile.sequence_parallel)
        sizes = tuple(request.microbatch_sizes)
        space = SearchSpace(of_group(profile, group), group.cluster, request.batch_size, sizes, shard=request.shard)
        space = replace(space, prefetch=request.prefetch, loaders=request.loaders)
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
        """Limit on the device-seconds of plans; None if the request has no limit."""
        limit = self.request.amplification_limit
        if limit is None:
            return None
        return Tolerance(limit, self.alone_s, self.profile.tensor, alone_words(self.cluster))

    def _rebucketed(self, plan: Plan) -> Rebucketed | None:
        if self.request.buckets != AUTO or self.tolerance is None:
            return None
        return kept_by_buckets(self._of_group(plan), self.profile, self.tolerance)

    def _on_cluster(self, one: Evaluated) -> Evaluated:
        """Candidate with a plan for the whole cluster, not for groups.

        The plan names the profile of one tensor-parallel rank.
        """
        profile = self.profile
        if profile.tensor == 1:
            return one
        config = f"{one.config} t{profile.tensor}{'s' if profile.sequence_parallel else ''}"
        return replace(one, config=config, plan=self._of_group(one.plan))

    def _of_group(self, plan: Plan) -> Plan:
        profile = self.profile
        if profile.tensor == 1:
            return plan
        along = profile.sequence_parallel
        whole = replace(plan, cluster=self.cluster, tensor=profile.tensor, profile_digest=profile.digest)
        return replace(whole, slices=not along, sequence_parallel=along)

    def _packs(self, progress: Progress | None, others_s: float) -> Packs:
        """Search plans that swap values to host memory.

        The result is empty for tensor-parallel groups, for sharded state, for optimizers that need one stage, and if
        plans load ahead.

        Arguments:
            others_s: seconds of the best plan without swaps; infinite if none fits.
        """
        space = self.space
        if self.profile.tensor > 1 or self.profile.coupled_step or space.shard not in (None, "none") or space.prefetch:
            return Packs()
        found = plans_of_packs(self.space, self.path, progress, others_s, self.tolerance is not None)
        return within(found, self.tolerance)

    def _baselines(self, policy: str, progress: Progress | None) -> Packs:
        """Simulate the baselines with virtual memory."""
        space = self.space
        if space.shard not in (None, "none"):
            check_together("shard", Feature.SWAP, Feature(f"shard: {space.shard}"))
        if self.profile.tensor > 1:
            raise InputError("swap", "tensor-parallel groups", "single devices, since groups do not swap")
        names = self.request.strategies or BASELINES
        found = plans_with_virtual_memory(space, names, policy, self.path, progress)
        if self.profile.coupled_step:
            several = conflict((Feature.STAGES, Feature.COUPLED_STEPS)) or ""
            for one in [one for one in found.candidates if len(one.plan.stages) > 1]:
                found.candidates.remove(one)
                found.refused.append(Refused(one.plan.strategy, "", several))
        return within(found, self.tolerance)


def _check_length(space: SearchSpace) -> None:
    """Refuse a batch of so many microbatches that neither schedules nor figures are meaningful."""
    largest = max(space.microbatch_sizes or space.profile.microbatch_sizes)
    if space.batch_size > MAX_FORWARDS * largest:
        origin, step = "measured", "Profile larger microbatches with `hocket profile -b`."
        if space.microbatch_sizes:
            origin, step = "named", "Name a larger microbatch size, or none for the profile's."
        expected = f"at most {MAX_FORWARDS * largest}, {MAX_FORWARDS} microbatches of the largest that was {origin}"
        raise InputError("batch_size", str(space.batch_size), expected, step)


def _improved(
    one: Evaluated,
    improve: Callable[[Evaluated, ModelProfile], Evaluated],
    what: str,
    profile: ModelProfile,
    refused: list[Refused],
) -> Evaluated:
    """Improve a candidate; unchanged if that fails.

    Arguments:
        improve: returns the candidate with a change where that is faster.
        what: name of the change, for the refusal.
    """
    try:
        return improve(one, profile)
    except Exception as error:
        refused.append(failed(one.strategy, f"{one.config} {what}", error))
        return one
