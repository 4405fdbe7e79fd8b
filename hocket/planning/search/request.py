"""Plan requests: the batch to plan for, and the choices to consider for it.

Rules of this file: a request is the same for profiled jobs and analytic models. Values that need neither model nor
cluster are checked here and nowhere else. Fields that are for the other kind of model are refused, not ignored.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hocket.cost.analytic.calibration import Calibration
from hocket.cost.analytic.transformer import RECOMPUTE, Precision
from hocket.errors import InputError, nearest
from hocket.planning.buckets.assign import AUTO, DEFAULT, check_buckets
from hocket.planning.swapping.baselines import SWAPS
from hocket.program.program import SHARDS

IN_16_BITS = Precision()


@dataclass(frozen=True)
class PlanRequest:
    """Request for a plan: a batch, and the choices to consider for it.

    Lists and sets are kept as tuples.

    Attributes:
        batch_size: samples of one update.
        strategies: names to consider; when empty, those with the mathematics of one process, and of an analytic model the usual ones.
        microbatch_sizes: to consider; when empty, those of the profile, or 1 to 16 for an analytic model.
        synchronous: False: where no strategy is named, those that compute with old weights as well; True: refuse such a name.
        shards: what replicas may divide of their state (docs/explanation/sharding.md); what serves best when empty. A profile takes one,
            for every plan.
        buckets: of gradients: AUTO, chosen for the best few plans (hocket/planning/buckets/assign.py); DEFAULT; or, for a profile, of
            so many bytes.
        amplification_limit: for a profile, of the device-seconds of an iteration over the seconds of one device alone with the same
            batch (burst/amplification.py): more is refused, and burst-parallel plans are found under it. None: no limit.
        swap: for a profile, only baselines whose memory is virtualised by this policy (swapping/baselines.py), of the strategies named
            or the usual ones.
        tensors: for an analytic model, widths of tensor-parallel groups; all that fit when empty.
        recomputes: for an analytic model, the recomputation inside of blocks, of RECOMPUTE; all when empty.
        sequence_parallel: for an analytic model, whether members of groups work on slices of the sequence; both when empty.
        precision, calibration: for an analytic model, the numbers of its training, and the correction of a device type.

    Raises:
        InputError: a batch without samples, or an unknown word.
    """

    batch_size: int
    strategies: Sequence[str] = ()
    microbatch_sizes: Sequence[int] = ()
    synchronous: bool | None = None
    shards: Sequence[str] = ()
    buckets: str | float = AUTO
    amplification_limit: float | None = None
    swap: str | None = None
    tensors: Sequence[int] = ()
    recomputes: Sequence[str] = ()
    sequence_parallel: Sequence[bool] = ()
    precision: Precision = IN_16_BITS
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        for name in ("strategies", "microbatch_sizes", "shards", "tensors", "recomputes", "sequence_parallel"):
            given = getattr(self, name)
            object.__setattr__(self, name, tuple(sorted(given) if isinstance(given, set | frozenset) else given))
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
        check_buckets(self.buckets)

    @property
    def shard(self) -> str | None:
        """Shard of every plan of a profile; None for the one that serves best."""
        return self.shards[0] if self.shards else None

    def check_for_profile(self) -> None:
        """Refuse what is only for analytic models.

        Raises:
            InputError: a field of an analytic model, or several shards.
        """
        sized = {name: getattr(self, name) for name in ("tensors", "recomputes", "sequence_parallel", "calibration")}
        sized["precision"] = self.precision != IN_16_BITS
        for name, value in sized.items():
            if value:
                raise InputError(name, "a profile", "an analytic model: layers of a profile are measured as they are")
        if len(self.shards) > 1:
            raise InputError(
                "shards", ", ".join(self.shards), "one, for every plan of a profile; or none, for the best"
            )

    def check_for_model(self) -> None:
        """Refuse what is only for profiles.

        Raises:
            InputError: a limit of the amplification, a swap policy, or buckets of some size.
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
        if not isinstance(self.buckets, str):
            raise InputError("buckets", f"{self.buckets:g}", f"{AUTO} or {DEFAULT}, for an analytic model")
