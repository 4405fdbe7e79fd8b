"""The search: every strategy's choices, ordered by a bound, decided by simulation, under every device's memory limit.

Rules of this file: deterministic to the byte; what looks equal within the tolerance goes to fewer stages, then fewer
devices, then plain data parallelism. Among all that is offered and fits, nothing is faster than the best by more than the
tolerance.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from hocket.cost.analytic.tensor_group import of_group
from hocket.errors import InputError, nearest
from hocket.hardware.cluster import Cluster
from hocket.hardware.groups import grouped
from hocket.planning.buckets.assign import AUTO, Rebucketed, best_few, check_buckets, kept_by_buckets
from hocket.planning.burst.amplification import alone_s as alone_of
from hocket.planning.burst.amplification_limit import Tolerance, alone_words
from hocket.planning.plan import Plan
from hocket.planning.predict.model_differences import differences
from hocket.planning.predict.update_semantics import considered
from hocket.planning.search.branch_and_bound import BranchAndBound
from hocket.planning.search.failures import failed
from hocket.planning.search.result import Evaluated, Refused, Search, joined, ordered
from hocket.planning.search.torch_compile import compiled, told
from hocket.planning.swapping.baselines import BASELINES, SWAPS, plans_with_virtual_memory
from hocket.planning.swapping.candidates import Packs, within
from hocket.planning.swapping.placement import left_out
from hocket.planning.swapping.search import SWAPPING, plans_of_packs
from hocket.profiling.profile import ModelProfile
from hocket.program.program import SHARDS
from hocket.strategies.base.search_space import MAX_FORWARDS, SearchSpace
from hocket.strategies.base.strategy import members, merges_microbatches, searched
from hocket.util.compatibility import Feature, check_together


def search(
    profile: ModelProfile,
    cluster: Cluster,
    batch_size: int,
    *,
    strategies: Sequence[str] = (),
    microbatch_sizes: tuple[int, ...] = (),
    profile_path: str = "",
    buckets: str | float = AUTO,
    synchronous: bool | None = None,
    shard: str | None = None,
    amplification_limit: float | None = None,
    alone_s: float | None = None,
    swap: str | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Search:
    """Find the best way to train a profiled job on a cluster.

    Of one of several tensor-parallel devices (`profile.tensor`) it is the best way for groups of so many.

    Arguments:
        batch_size: samples of one update.
        strategies: names to consider; those with the mathematics of one process when empty.
        microbatch_sizes: to consider; those of the profile when empty.
        buckets: of gradients: AUTO, chosen for the best few plans (hocket/planning/buckets/assign.py), DEFAULT, or of so many bytes.
        synchronous: False: where none is named, those that compute with old weights as well; True: refuse such a name.
        shard: what replicas divide in every plan (docs/explanation/sharding.md); None: what serves best, and under `fully_sharded` all.
        amplification_limit: of the device-seconds of an iteration over the seconds of one device alone with the same batch
            (amplification.py): what uses more is refused, and burst-parallel plans are found under it. None: no limit.
        swap: only baselines whose memory is virtualised by this policy (baselines.py), of the strategies named or the usual ones.
        alone_s: these seconds; worked out from the profile when not given.
        progress: called with (done, total, what) of each step of the search; a total of 0 is not known.

    Raises:
        InputError: an unknown strategy, one that is not synchronous where only those are wanted, or a size that is not positive.
    """
    began = clock()
    if batch_size < 1:
        raise InputError("batch_size", str(batch_size), ">= 1")
    largest = profile.microbatch_sizes[-1]
    if batch_size > MAX_FORWARDS * largest:  # beyond it neither schedules nor figures mean anything
        expected = f"at most {MAX_FORWARDS * largest}, {MAX_FORWARDS} microbatches of the largest that was measured"
        raise InputError(
            "batch_size", str(batch_size), expected, "Profile larger microbatches with `hocket profile -b`."
        )
    check_buckets(buckets)
    chosen = considered(strategies, synchronous, members(), searched())
    group = grouped(cluster, profile.tensor, slices=not profile.sequence_parallel)
    situation = SearchSpace(of_group(profile, group), group.cluster, batch_size, microbatch_sizes)
    if shard is not None:
        if shard not in SHARDS:
            raise InputError("shard", repr(shard), f"one of {', '.join(SHARDS)}", nearest(shard, SHARDS))
        situation = replace(situation, shard=shard)
    if not profile.elementwise_step:
        profile.check_shard("shard", shard or "none")
        situation = replace(situation, shard="none")
    if buckets == AUTO:
        situation = replace(situation, rebuckets=True)
    elif not isinstance(buckets, str):
        situation = replace(situation, bucket_bytes=buckets)
    tolerance = None
    if amplification_limit is not None:
        alone_s = alone_of((profile,), cluster, batch_size) if alone_s is None else alone_s
        tolerance = Tolerance(amplification_limit, alone_s, profile.tensor, alone_words(cluster))
        own_s = alone_of((situation.profile,), situation.cluster, batch_size)
        situation = replace(situation, amplification_limit=amplification_limit * alone_s / own_s)

    def rebucket(plan: Plan) -> Rebucketed | None:
        if buckets != AUTO or tolerance is None:
            return None
        return kept_by_buckets(_of_group(plan, profile, cluster), profile, tolerance)

    if swap is not None:
        return _baselines(situation, strategies, swap, tolerance, profile_path, progress, lambda: clock() - began)
    hunt = BranchAndBound(situation, profile_path, tolerance, rebucket)
    for name in chosen:
        hunt.offer(name)
    hunt.run(progress)
    found = ordered(_of_groups(hunt.candidates, profile, cluster))
    notes = [*_notes(profile, situation, cluster), *note_of_extrapolation(profile, found[:1])]
    at = progress or (lambda done, total, what: None)
    if profile.compiled is not None:
        at(0, 0, "stages that are worth compiling")
        found = ordered(_compiled(one, profile, hunt.refused) for one in found)
    if buckets == AUTO:
        at(0, 0, "buckets of gradients")
        found = ordered(best_few(found, profile, tolerance, hunt.refused))
    if profile.compiled is not None and found:
        notes.append(told(found[0].plan, profile))
    packs = Packs()
    if (not strategies or SWAPPING in strategies) and any(one.missing_bytes for one in hunt.refused):
        others_s = min((one.iteration_s for one in found), default=inf)
        packs = _packs(situation, profile_path, tolerance, progress, others_s)
        if packs.considered and (note := left_out(situation.cluster)):
            notes.append(note)
    found = ordered([*found, *packs.candidates])
    considered_in_all = hunt.considered + packs.considered
    refused = (*hunt.refused, *packs.refused)
    return Search(tuple(found), refused, clock() - began, considered_in_all, tuple(notes))


def _compiled(one: Evaluated, profile: ModelProfile, refused: list[Refused]) -> Evaluated:
    """The candidate with compiled stages where that is faster; unchanged if compilation fails."""
    try:
        return compiled(one, profile)
    except Exception as error:
        refused.append(failed(one.strategy, f"{one.config} compiled", error))
        return one


def _packs(
    situation: SearchSpace,
    profile_path: str,
    tolerance: Tolerance | None,
    progress: Callable[[int, int, str], None] | None,
    others_s: float,
) -> Packs:
    """Plans that swap, which are for whole devices that are kept."""
    if situation.profile.tensor > 1 or situation.shard not in (None, "none"):
        return Packs()
    found = plans_of_packs(situation, profile_path, progress, others_s, tolerance is not None)
    return within(found, tolerance)


def _baselines(
    situation: SearchSpace,
    strategies: Sequence[str],
    policy: str,
    tolerance: Tolerance | None,
    profile_path: str,
    progress: Callable[[int, int, str], None] | None,
    seconds: Callable[[], float],
) -> Search:
    """Plans with virtual memory alone."""
    if policy not in SWAPS:
        raise InputError("swap", repr(policy), f"one of {', '.join(SWAPS)}", nearest(policy, SWAPS))
    if situation.shard not in (None, "none"):
        check_together("shard", Feature.SWAP, Feature(f"shard: {situation.shard}"))
    if situation.profile.tensor > 1:
        raise InputError("swap", "groups of devices", "plans that swap on whole devices")
    found = plans_with_virtual_memory(situation, strategies or BASELINES, policy, profile_path, progress)
    found = within(found, tolerance)
    return Search(tuple(ordered(found.candidates)), tuple(found.refused), seconds(), found.considered)


def search_widths(profiles: Mapping[str, ModelProfile], cluster: Cluster, batch_size: int, **options: Any) -> Search:
    """The best way among several widths of tensor-parallel groups; see `search` for the options.

    Arguments:
        profiles: by path, one of each width, on slices of the sequence and not, of one job.

    Raises:
        InputError: as `search`; or two profiles are of one width, or of different jobs.
    """
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
    if options.get("amplification_limit") is not None:
        options = {**options, "alone_s": alone_of(profiles.values(), cluster, batch_size)}
    return joined([search(one, cluster, batch_size, profile_path=path, **options) for path, one in profiles.items()])


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


def note_of_types(profile: ModelProfile, cluster: Cluster) -> Iterator[str]:
    """Note if the cluster has device types without measurements: profiled seconds are scaled."""
    here = profile.device_type
    others = dict.fromkeys([node.device_type for node in cluster.nodes] or [cluster.device_type])
    for name in (here, *profile.elsewhere):
        others.pop(name, None)
    if others:
        names = ", ".join(others)
        made = "worked out for" if profile.worked_out else "measured on"
        yield f"{made} {here}, scaled to {names} by their peak rates: rough; measure where it matters"


def note_of_extrapolation(profile: ModelProfile, best: Sequence[Evaluated]) -> Iterator[str]:
    """Note if the best plan runs forwards of unmeasured sizes: their seconds are extrapolated."""
    known = profile.microbatch_sizes
    for one in best:
        batches = one.plan.batches
        if not profile.worked_out and merges_microbatches(one.strategy):
            sizes = {batches.samples(0, batches.count // len(stage.devices)) for stage in one.plan.stages}
            if outside := sorted(size for size in sizes if not known[0] <= size <= known[-1]):
                yield (
                    f"the best plan runs {', '.join(map(str, outside))} samples at once, and the profile has "
                    f"{', '.join(map(str, known))}: its seconds are extrapolated; measure these sizes with `hocket profile -b`"
                )


def _notes(profile: ModelProfile, situation: SearchSpace, cluster: Cluster) -> Iterator[str]:
    """Notes on obstacles to training, rough figures, and differences from one process, common to all plans."""
    batch_size = situation.batch_size
    known = profile.microbatch_sizes
    if unknown := [size for size in situation.sizes if size not in known]:
        yield (
            f"microbatches of {', '.join(map(str, unknown))} were not measured: their seconds and bytes continue those of "
            f"{', '.join(map(str, known))}; measure them with `hocket profile -b`"
        )
    if profile.batch_size not in (0, batch_size):
        yield (
            f"the job was profiled with batch_size={profile.batch_size}: `hocket train` takes a plan for {batch_size} "
            f"only after the job says batch_size={batch_size}"
        )
    yield from note_of_types(profile, cluster)
    yield from (one.text for one in differences(profile))
