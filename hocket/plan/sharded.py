"""Sharded data parallelism: what replicas that share optimizer state and step (docs/sharding.md) would take, for a profiled job, whose
search does not look at them.

Rules of this file: simulated, not guessed; one stage on all devices of one type, every microbatch size, what fits.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import ceil

from hocket.errors import HocketError
from hocket.plan.hunt import make_plan
from hocket.plan.plan import Plan, Predicted
from hocket.plan.predict import predict_iteration
from hocket.profile.model import ModelProfile
from hocket.strategies._choices import Choice, Situation, cut

SHARD = "optimizer"


def sharded_profile(profile: ModelProfile, of: Plan, sizes: tuple[int, ...] = ()) -> tuple[str, Plan] | None:
    """The best of a profiled job on a plan's cluster and for its batch, in microbatches of these sizes or of the profile's."""
    situation = Situation(profile, of.cluster, of.batch_size, sizes)
    everything, devices = range(len(profile.layers)), tuple(range(of.cluster.devices))

    def plans() -> Iterator[tuple[str, Plan, ModelProfile]]:
        for size in situation.sizes:
            microbatches = ceil(of.batch_size / size)
            if len(devices) > 1 and len(devices) <= microbatches:
                for again in (False, True):
                    choice = Choice((cut(situation, everything, devices, again),), size, microbatches)
                    label = f"data_parallel {len(devices)} b{size}{' recompute' if again else ''}"
                    yield label, make_plan(situation, "data_parallel", choice), profile

    return None if profile.tensor > 1 or len(devices) == 1 else _best(plans())


def _best(plans: Iterable[tuple[str, Plan, ModelProfile]]) -> tuple[str, Plan] | None:
    found: list[tuple[float, str, Plan]] = []
    for label, plan, profile in plans:
        changed = replace(plan, shard=SHARD, predicted=None)
        try:
            predicted = predict_iteration(changed, profile)
        except HocketError:
            continue
        if _fits(predicted, changed):
            found.append((predicted.iteration_s, label, replace(changed, predicted=predicted)))
    best = min(found, key=lambda one: one[:2], default=None)
    return None if best is None else best[1:]


def _fits(predicted: Predicted, plan: Plan) -> bool:
    cluster = plan.group.cluster
    return all(size <= cluster.capacity_bytes(device) for device, size in predicted.peak_memory_bytes.items())
