"""Host rate: what the links between devices and their hosts carried in a run that swapped, and a cluster that has such links."""

import numpy as np

from hocket.hardware.change import with_host_links
from hocket.hardware.cluster import Cluster
from hocket.plan.plan import Plan
from hocket.plan.predict import played
from hocket.profile.model import ModelProfile
from hocket.program.instruction import SWAPS
from hocket.trace.trace import KINDS


def with_host_rate(cluster: Cluster, bytes_per_s: float) -> Cluster:
    """A cluster whose links to hosts carry so much in each direction, shared or not as they were."""
    return with_host_links(cluster, lambda _: bytes_per_s)


def host_rate(plan: Plan, profile: ModelProfile, swap_s: float) -> float | None:
    """What links to hosts carry, so that swaps take as long as they did; None where nothing was swapped.

    Links that several devices share are as slow in the simulated run as in the real one: the quotient of the seconds is the links'.
    """
    if plan.swap is None or not swap_s > 0:
        return None
    outcome = played(plan, profile)
    trace = outcome.trace
    swaps = [KINDS.index(kind) for kind in SWAPS]
    batches = outcome.program.microbatches(outcome.repeats) / len(outcome.costs.samples)
    predicted_s = float((trace.end_s - trace.start_s)[np.isin(trace.kind, swaps)].sum()) / batches
    if not predicted_s > 0:
        return None
    link, _ = plan.cluster.host_link_of(plan.stages[0].devices[0])
    return link.bandwidth_bytes_per_s * predicted_s / swap_s
