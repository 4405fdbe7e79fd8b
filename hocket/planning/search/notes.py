"""Notes of a search: obstacles to training, rough estimates, different results."""

from collections.abc import Iterator, Sequence

from hocket.hardware.cluster import Cluster
from hocket.planning.predict.model_differences import STAGE_NORMS, differences
from hocket.planning.search.result import Search
from hocket.strategies.base.search_space import SearchSpace
from hocket.strategies.base.strategy import merges_microbatches


def note_of_types(known: Sequence[str], worked_out: bool, cluster: Cluster) -> Iterator[str]:
    """Yield a note if the cluster has device types without figures in the profile.

    Seconds on these types are scaled from the profile's device type by peak rates.

    Arguments:
        known: the profile's device type, then the others that it has figures for.
        worked_out: True if the profile was computed, not measured.
    """
    others = dict.fromkeys([node.device_type for node in cluster.nodes] or [cluster.device_type])
    for name in known:
        others.pop(name, None)
    if others:
        names = ", ".join(others)
        made = "worked out for" if worked_out else "measured on"
        yield f"{made} {known[0]}, scaled to {names} by their peak rates: rough; measure where it matters"


def notes_of(found: Search, space: SearchSpace, cluster: Cluster) -> Iterator[str]:
    """Yield notes that hold for all plans of a search.

    They are about obstacles to training, rough estimates, differences from training in one process, and merged
    microbatches of the best plan that are outside of the profiled sizes.

    Arguments:
        found: result of a search with one profile.
    """
    (profile,), batch_size = found.profiles.values(), space.batch_size
    known = profile.microbatch_sizes
    if unknown := [size for size in space.sizes if size not in known]:
        yield (
            f"microbatches of {', '.join(map(str, unknown))} were not measured: their seconds and bytes continue those of "
            f"{', '.join(map(str, known))}; measure them with `hocket profile -b`"
        )
    if profile.batch_size not in (0, batch_size):
        yield (
            f"the job was profiled with batch_size={profile.batch_size}: `hocket train` takes a plan for {batch_size} "
            f"only after the job says batch_size={batch_size}"
        )
    yield from note_of_types((profile.device_type, *profile.elsewhere), profile.worked_out, cluster)
    yield from (one.text for one in differences(profile.layers, profile.loss_parts))
    if profile.clip_stage_norm is not None:
        yield STAGE_NORMS.text
    for one in found.candidates[:1] if not profile.worked_out else ():
        batches = one.plan.batches
        if merges_microbatches(one.strategy):
            sizes = {batches.samples(0, batches.count // len(stage.devices)) for stage in one.plan.stages}
            if outside := sorted(size for size in sizes if not known[0] <= size <= known[-1]):
                yield (
                    f"the best plan runs {', '.join(map(str, outside))} samples at once, and the profile has "
                    f"{', '.join(map(str, known))}: its seconds are extrapolated; measure these sizes with `hocket profile -b`"
                )
