"""Feedback of a run: measured and predicted figures of its plan.

They correct the profile for the next plan of the same model and cluster.

Rules of this file: the newest run of a plan counts; its figures are in a small file beside the plan. All compute
seconds of a profile are multiplied by one factor, so that the prediction of the plan equals the measurement. Bytes
are multiplied only if the prediction was too low. Runs that were short, or that had another optimizer, data type or
device type than the profile, are ignored. A corrected profile says so, and a further correction starts from the
uncorrected figures.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from hocket.errors import HocketError, InputError, RefusedError
from hocket.hardware.cluster import Cluster, Link
from hocket.hardware.link_sums import LinkSums
from hocket.planning.plan import Plan
from hocket.planning.predict.predict import predict_iteration
from hocket.planning.swapping.fit_host_link import host_links, on_links
from hocket.profiling.layer import Layer, OtherDeviceLayer
from hocket.profiling.profile import CPU, Correction, ModelProfile
from hocket.util.documents import parse_yaml, write_yaml
from hocket.util.files import digest, read_bytes, write_atomic
from hocket.util.schema import as_data, read_as
from hocket.util.units import show_count, show_rate, show_seconds

FORMAT = "hocket-experience-1"
SUFFIX = ".experience.yaml"
WARM_STEPS = 20
"""Least number of steps after warm-up; the median of fewer steps is not reliable."""
_LIMIT = 16.0  # largest factor between measurement and prediction, in either direction
_CLOSE = 1e-3
_NEAR = 0.05  # largest error after the correction: a larger one is not caused by compute seconds
_TRIES = 8
_ANY = Link(1.0)


@dataclass(frozen=True)
class RunFeedback:
    """Measured and predicted figures of one run, and the correction of the profile that follows from them.

    Attributes:
        model: the profile's name.
        profile_digest: SHA-256 of the profile before any correction.
        cluster_digest: SHA-256 of the cluster's text.
        steps: number of training steps.
        predicted_iteration_s, measured_iteration_s: seconds for a batch.
        predicted_peak_memory_bytes, measured_peak_memory_bytes: peak bytes by device.
        slowdown, growth: factors on seconds and bytes of the profile before any correction.
        host_links: links to hosts over which values were swapped, in one direction, by name (fit_host_link.py); {}
            without swaps.
    """

    model: str
    profile_digest: str
    cluster_digest: str
    strategy: str
    steps: int
    predicted_iteration_s: float
    measured_iteration_s: float
    predicted_peak_memory_bytes: dict[int, float]
    measured_peak_memory_bytes: dict[int, float]
    slowdown: float
    growth: float
    host_links: dict[str, Link] = field(default_factory=dict)
    format: str = field(default=FORMAT)

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise InputError("format", repr(self.format), repr(FORMAT))
        for name, least in (("slowdown", 1 / _LIMIT**2), ("growth", 1.0)):
            if not least <= getattr(self, name) <= _LIMIT**2:
                raise InputError(name, str(getattr(self, name)), f"{least:g} to {_LIMIT**2:g}")

    @property
    def line(self) -> str:
        """The correction in a sentence."""
        off = self.measured_iteration_s / self.predicted_iteration_s - 1
        took = f"{abs(off):.1%} {'more' if off > 0 else 'less'} time than predicted"
        swapped = "".join(
            f"; swaps took {show_seconds(link.latency_s)} each and carried {show_rate(link.bandwidth_bytes_per_s)}"
            f"{f' ({name})' * (len(self.host_links) > 1)}"
            for name, link in sorted(self.host_links.items())
        )
        grown = f", bytes by {self.growth:.3f}" if self.growth > 1 else ""
        return (
            f"a run of {self.steps} steps ({self.strategy}) took {took}, including transfers: profiled compute "
            f"seconds are multiplied by {self.slowdown:.3f}{grown}{swapped}"
        )

    def is_of(self, profile: ModelProfile, cluster: Cluster) -> bool:
        """True for a run of this profile (corrected or not) on this cluster."""
        # Measured links are left out of the comparison: a later plan's cluster may contain the values from this run.
        return self.profile_digest == _first_digest(profile) and self.cluster_digest == _digest(
            cluster, self.host_links
        )

    def applied(self, profile: ModelProfile) -> ModelProfile:
        """The profile, corrected by the run."""
        return corrected(profile, Correction(self.slowdown, self.growth))

    def on(self, cluster: Cluster) -> Cluster:
        """The cluster with the measured links to hosts; unchanged if none were measured."""
        return on_links(cluster, self.host_links)

    def save(self, path: str | Path) -> None:
        """Write the text form, atomically."""
        data = as_data(self)
        if not self.host_links:
            del data["host_links"]
        write_atomic(path, write_yaml(data))

    @classmethod
    def read(cls, path: str | Path) -> "RunFeedback":
        """Read the feedback file of a run.

        Raises:
            InputError: the file is not a feedback file, or it is invalid.
        """
        data = parse_yaml(read_bytes(path, 2**20), str(path))
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise InputError(str(path), "another document", f"feedback of a run ({FORMAT}, YAML)")
        return read_as(cls, data, str(path))


def _digest(cluster: Cluster, learned: Iterable[str]) -> str:
    """SHA-256 of a cluster's text, without the values of some links.

    Arguments:
        learned: names of these links.
    """
    return digest(on_links(cluster, dict.fromkeys(learned, _ANY)).to_yaml().encode())


def _first_digest(profile: ModelProfile) -> str:
    """A profile's digest before any correction."""
    return profile.correction.digest if profile.correction else profile.digest


def beside(plan: Path) -> Path:
    """Path of the feedback file of a plan, in the plan's folder.

    The file holds the measurements of the plan's newest run (`RunFeedback`).
    """
    return plan.with_name(f"{plan.stem}{SUFFIX}")


def check_like(
    cluster: Cluster, profile: ModelProfile, warm_steps: float, optimizer: str, dtype: str, device_types: Sequence[str]
) -> None:
    """Refuse a run that does not represent other runs of the same profile.

    Arguments:
        cluster: the plan's cluster.
        warm_steps: number of the run's steps after warm-up.
        optimizer, dtype, device_types: optimizer, data type and device types of the run, named as in a profile.

    Raises:
        RefusedError: the run was short, or differs from the profile or the plan in one of these.
    """

    def refuse(found: str, expected: str) -> None:
        raise RefusedError("run", found, expected)

    if warm_steps < WARM_STEPS:
        refuse(f"{show_count(int(warm_steps), 'step')} after warm-up", f"at least {WARM_STEPS}")
    if optimizer != profile.optimizer:
        refuse(f"trained with {optimizer or 'no optimizer'}", f"{profile.optimizer}, the profile's optimizer")
    if dtype != profile.dtype:
        refuse(f"computed in {dtype}", f"{profile.dtype}, the profile's data type")
    wanted = {cluster.type_of(device).name for device in range(cluster.devices)}
    for name in device_types:
        if not any(_is_of(name, kind) for kind in wanted):
            refuse(f"on {name}", f"{' and '.join(sorted(wanted))}, as in the plan")


def _is_of(name: str, kind: str) -> bool:
    """True if a device name denotes a device type.

    The names are equal, or the first part of the type's name occurs in the device name.
    """
    return name == kind or (CPU not in (name, kind) and kind.partition("-")[0] in name.lower())


def learned_from(
    plan: Plan,
    profile: ModelProfile,
    iteration_s: float,
    peak_memory_bytes: Mapping[int, float],
    steps: int,
    swaps: Mapping[int, LinkSums] | None = None,
) -> RunFeedback:
    """Compare a plan's run with its prediction.

    Arguments:
        profile: the plan's profile, corrected or not.
        iteration_s: measured seconds of an iteration.
        peak_memory_bytes: measured peak bytes, by device of the plan.
        steps: number of training steps of the run.
        swaps: measured sums over swaps, by device of the plan.

    Raises:
        InputError: plan and profile do not belong together.
        RefusedError: no factor on compute seconds explains the run.
    """
    predicted = predict_iteration(plan, profile)
    links = host_links(plan, profile, swaps or {})  # swaps that last longer are not a matter of compute seconds
    plan = replace(plan, cluster=on_links(plan.cluster, links))
    peaks = {device: predicted.peak_memory_bytes[device // plan.tensor] for device in sorted(peak_memory_bytes)}
    more = max((size / peaks[device] for device, size in peak_memory_bytes.items() if peaks[device]), default=1.0)
    before = profile.correction or Correction()
    now_s = predict_iteration(plan, profile).iteration_s if links else predicted.iteration_s
    slowdown = _slowdown(plan, profile, now_s, iteration_s)
    return RunFeedback(
        profile.name,
        _first_digest(profile),
        _digest(plan.cluster, links),
        plan.strategy,
        steps,
        predicted.iteration_s,
        iteration_s,
        peaks,
        {device: float(size) for device, size in sorted(peak_memory_bytes.items())},
        before.slowdown * slowdown,
        min(max(1.0, before.growth * min(more, _LIMIT)), _LIMIT),
        links,
    )


def _slowdown(plan: Plan, profile: ModelProfile, predicted_s: float, measured_s: float) -> float:
    """Factor on compute seconds with which the prediction equals the measurement.

    Transfers are unchanged.

    Raises:
        RefusedError: with no factor do both come near each other.
    """
    factor, first_s = 1.0, predicted_s
    for _ in range(_TRIES):
        if abs(predicted_s / measured_s - 1) < _CLOSE:
            break
        factor = min(max(factor * measured_s / predicted_s, 1 / _LIMIT), _LIMIT)
        own = profile.correction or Correction()
        scaled = corrected(profile, Correction(own.slowdown * factor, own.growth))
        now = replace(plan, profile_digest=scaled.digest, predicted=None)
        predicted_s = predict_iteration(now, scaled).iteration_s
    if abs(predicted_s / measured_s - 1) > _NEAR:
        found = f"{measured_s / first_s:.3g} times the predicted seconds"
        raise RefusedError("run", found, "a run that one factor on compute seconds explains")
    return factor


def corrected(profile: ModelProfile, to: Correction) -> ModelProfile:
    """The profile with a correction, which replaces an earlier one.

    Arguments:
        to: factors on the uncorrected figures.
    """
    own = profile.correction or Correction()
    slower, larger = to.slowdown / own.slowdown, to.growth / own.growth

    def times(values: tuple[float, ...], factor: float) -> tuple[float, ...]:
        return tuple(value * factor for value in values)

    def changed(one: Layer | OtherDeviceLayer) -> dict[str, Any]:
        """Seconds of a layer, on the profiled device type or another."""
        known = {name: times(getattr(one, name), slower) for name in ("forward_s", "backward_s")}
        return known | {name: getattr(one, name) * slower for name in ("step_s", "copy_s")}

    def of(layer: Layer) -> Layer:
        sizes: dict[str, Any] = {
            name: times(getattr(layer, name), larger)
            for name in ("stash_bytes", "working_bytes", "backward_bytes", "fresh_bytes")
        }
        others: Any = tuple(replace(one, **changed(one)) for one in layer.elsewhere)
        return replace(layer, **changed(layer), **sizes, noise_s=times(layer.noise_s, slower), elsewhere=others)

    return replace(
        profile,
        layers=tuple(of(layer) for layer in profile.layers),
        whole_forward_s=times(profile.whole_forward_s, slower),
        whole_backward_s=times(profile.whole_backward_s, slower),
        whole_forward_std_s=times(profile.whole_forward_std_s, slower),
        whole_backward_std_s=times(profile.whole_backward_std_s, slower),
        step_call_s=profile.step_call_s * slower,
        correction=replace(to, digest=_first_digest(profile)),
    )


def experience_of(folder: Path, plan: Path | None, profile: ModelProfile, cluster: Cluster) -> RunFeedback | None:
    """Find feedback for a model on a cluster in a folder.

    Feedback of the plan itself is preferred, then feedback of the longest run. Other files and short runs are ignored.

    Arguments:
        plan: path of the plan; None without a plan.

    Returns:
        None if the folder has no feedback for this profile and cluster.
    """
    found = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            one = RunFeedback.read(path)
        except HocketError:
            continue
        if one.steps >= WARM_STEPS and one.is_of(profile, cluster):
            found.append((plan is not None and path.name == beside(plan).name, one.steps, one))
    return max(found, key=lambda each: each[:2])[2] if found else None
