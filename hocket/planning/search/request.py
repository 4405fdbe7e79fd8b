"""Plan requests: the batch to plan for, and the candidates to consider for it.

Rules of this file:
- Profiled jobs and analytic models share one request type.
- Values that depend on neither model nor cluster are checked here and nowhere else.
- Fields for the other kind of model are refused, not ignored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from hocket.cost.analytic.calibration import Calibration
from hocket.cost.analytic.transformer import RECOMPUTE, Precision
from hocket.errors import InputError, nearest
from hocket.profiling.data.source import check_loaders
from hocket.program.passes.prefetch import check_prefetch
from hocket.program.passes.swapping.settings import POLICIES
from hocket.program.program import SHARDS
from hocket.util.compatibility import Feature, check_together

AUTO, DEFAULT = "auto", "default"
SWAPS = tuple(policy for policy in POLICIES if policy != "task")
"""Policies of `hocket plan --swap`: policies that evict values only if a device's memory is full."""
IN_16_BITS = Precision()


@dataclass(frozen=True)
class PlanRequest:
    """Request for a plan: a batch, and the candidates to consider for it.

    Lists and sets are kept as tuples, without repetitions.

    Attributes:
        batch_size: samples of one update.
        strategies: names to consider. When empty: strategies with the updates of one process; for an analytic model,
            USUAL (hocket/planning/mesh/layout.py).
        microbatch_sizes: sizes to consider, in samples. When empty: the sizes of the profile, or 1, 2, 4, 8 and 16 for
            an analytic model.
        synchronous: False: if no strategy is named, also consider strategies with stale weights. True: refuse a named
            strategy with stale weights.
        shards: sharding of state among replicas (docs/explanation/sharding.md); the best when empty. For a profile at
            most one, which holds for every plan.
        buckets: gradient buckets: AUTO, chosen for the few best plans (hocket/planning/buckets/assign.py); DEFAULT,
            closed at a fixed number of bytes; or, for a profile, this number.
        amplification_limit: for a profile, limit on an iteration's device-seconds relative to the seconds of one
            device with the same batch (burst/amplification.py). Plans above the limit are refused; burst-parallel
            plans are searched below it. None: no limit.
        swap: for a profile, consider only baselines that page values to the host by this policy
            (swapping/baselines.py), for the named strategies or BASELINES; buckets that are AUTO are then DEFAULT.
            None: plans that swap are searched if some other plan does not fit.
        prefetch: for a profile, number of microbatches that every plan loads ahead, beside computation.
        loaders: for a profile, number of processes of each worker that read its samples ahead.
        tensors: for an analytic model, tensor-parallel sizes; all that fit when empty.
        recomputes: for an analytic model, recompute settings of blocks, of RECOMPUTE; all when empty.
        sequence_parallel: for an analytic model, values to consider for sequence parallelism; both when empty.
        precision, calibration: for an analytic model, number formats of training, and correction of a device type.

    Raises:
        InputError: a batch without samples, an unknown recompute setting, sharding or swap policy, or invalid buckets,
            prefetch or loaders.
        RefusedError: a swap policy and prefetch.
    """

    batch_size: int
    strategies: Sequence[str] = ()
    microbatch_sizes: Sequence[int] = ()
    synchronous: bool | None = None
    shards: Sequence[str] = ()
    buckets: str | float = AUTO
    amplification_limit: float | None = None
    swap: str | None = None
    prefetch: int = 0
    loaders: int = 0
    tensors: Sequence[int] = ()
    recomputes: Sequence[str] = ()
    sequence_parallel: Sequence[bool] = ()
    precision: Precision = IN_16_BITS
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        for name in ("strategies", "microbatch_sizes", "shards", "tensors", "recomputes", "sequence_parallel"):
            given = getattr(self, name)
            distinct = sorted(given) if isinstance(given, set | frozenset) else dict.fromkeys(given)
            object.__setattr__(self, name, tuple(distinct))
        if self.batch_size < 1:
            raise InputError("batch_size", str(self.batch_size), ">= 1")
        for word in self.recomputes:
            if word not in RECOMPUTE:
                raise InputError("recompute", repr(word), f"one of {', '.join(RECOMPUTE)}")
        for word in self.shards:
            if word not in SHARDS:
                raise InputError("shard", repr(word), f"one of {', '.join(SHARDS)}", nearest(word, SHARDS))
        if self.swap is not None and self.swap not in SWAPS:
            raise InputError("swap", repr(self.swap), f"one of {', '.join(SWAPS)}", nearest(self.swap, SWAPS))
        check_prefetch(self.prefetch)
        check_loaders(self.loaders)
        if self.swap is not None and self.prefetch:
            check_together("prefetch", Feature.SWAP, Feature.PREFETCH)
        if self.buckets not in (AUTO, DEFAULT) and (isinstance(self.buckets, str) or not 0 < self.buckets < inf):
            raise InputError("buckets", repr(self.buckets), f"{AUTO}, {DEFAULT} or a number of bytes")

    @property
    def shard(self) -> str | None:
        """Sharding of every plan of a profile; None to choose the best."""
        return self.shards[0] if self.shards else None

    def check_for_profile(self) -> None:
        """Refuse fields that are only for analytic models.

        Raises:
            InputError: a field of an analytic model is set, or several shards.
        """
        sized = {name: getattr(self, name) for name in ("tensors", "recomputes", "sequence_parallel", "calibration")}
        sized["precision"] = self.precision != IN_16_BITS
        for name, value in sized.items():
            if value:
                expected = "it only with an analytic model: a profile's measured layers cannot be changed by it"
                raise InputError(name, "this option with a profile", expected)
        if len(self.shards) > 1:
            raise InputError(
                "shards", ", ".join(self.shards), "one, for every plan of a profile; or none, for the best"
            )

    def check_for_model(self) -> None:
        """Refuse fields that are only for profiles.

        Raises:
            InputError: an amplification limit, a swap policy, prefetch, loaders, or a bucket size in bytes.
        """
        if self.amplification_limit is not None:
            raise InputError(
                "amplification_limit",
                "an analytic model, for which every plan uses all devices",
                "a profile, where each layer may use its own number of devices",
                "Profile the model (`hocket profile job.py --device-type` needs no device), or ask for few devices with --objective cost.",
            )
        if self.swap is not None:
            raise InputError("swap", "an analytic model", "a profile: plans of analytic models never swap")
        for key in ("prefetch", "loaders"):
            if getattr(self, key):
                raise InputError(key, "an analytic model", "a profile: an analytic model has no data to load")
        if not isinstance(self.buckets, str):
            raise InputError("buckets", f"{self.buckets:g}", f"{AUTO} or {DEFAULT}, for an analytic model")
