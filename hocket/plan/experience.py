"""Experience: what a run took beside what was predicted of its plan, kept for the next plan of the same model and cluster.

Rules of this file: the newest run of a plan is what counts, and stands in one small file beside the plan. All compute seconds of
a profile are multiplied so that the plan that ran is predicted as it was measured; bytes only where less was predicted than was
measured. A profile that was corrected says so, and is corrected anew from what it was.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from hocket.documents import parse_yaml, write_yaml
from hocket.errors import HocketError, InputError
from hocket.files import digest, read_bytes, write_atomic
from hocket.hardware.cluster import Cluster
from hocket.plan.plan import Plan
from hocket.plan.predict import predict_iteration
from hocket.profile.model import Correction, Elsewhere, Layer, ModelProfile
from hocket.typed import as_data, read_as

FORMAT = "hocket-experience-1"
SUFFIX = ".experience.yaml"
_LIMIT = 16.0  # a run that took more times longer, or shorter, than predicted was no run of this kind
_CLOSE = 1e-3
_TRIES = 8


@dataclass(frozen=True)
class Experience:
    """One run.

    Attributes:
        model: the profile's name; profile_digest: of the profile as it was measured; cluster_digest: SHA-256 of the cluster's
            text.
        steps: trained. predicted_iteration_s, measured_iteration_s: seconds for a batch, and peak bytes by device.
        slowdown, growth: by which seconds and bytes of the profile as it was measured are to be multiplied.
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
        """What is learned from it, in a sentence."""
        off = self.measured_iteration_s / self.predicted_iteration_s - 1
        grown = f", bytes by {self.growth:.3f}" if self.growth > 1 else ""
        return (
            f"a run of {self.steps} steps ({self.strategy}) took {off:+.1%} of what was predicted: seconds of the profile are "
            f"multiplied by {self.slowdown:.3f}{grown}"
        )

    def is_of(self, profile: ModelProfile, cluster: Cluster) -> bool:
        """Whether it is of this profile, corrected or not, on this cluster."""
        return self.profile_digest == _first_digest(profile) and self.cluster_digest == digest_of(cluster)

    def applied(self, profile: ModelProfile) -> ModelProfile:
        """The profile with what was learned."""
        return corrected(profile, Correction(self.slowdown, self.growth))

    def save(self, path: str | Path) -> None:
        """Write the text form whole or not at all."""
        write_atomic(path, write_yaml(as_data(self)))

    @classmethod
    def read(cls, path: str | Path) -> "Experience":
        """Read the file of a run.

        Raises:
            InputError: it is none, or a wrong one.
        """
        data = parse_yaml(read_bytes(path, 2**20), str(path))
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise InputError(str(path), "another document", f"what a run took ({FORMAT}, YAML)")
        return read_as(cls, data, str(path))


def digest_of(cluster: Cluster) -> str:
    """SHA-256 of a cluster's text."""
    return digest(cluster.to_yaml().encode())


def _first_digest(profile: ModelProfile) -> str:
    """A profile's digest before it was corrected."""
    return profile.correction.digest if profile.correction else profile.digest


def beside(plan: Path) -> Path:
    """Where a run of a plan is kept."""
    return plan.with_name(f"{plan.stem}{SUFFIX}")


def learned_from(
    plan: Plan, profile: ModelProfile, iteration_s: float, peak_memory_bytes: Mapping[int, float], steps: int
) -> Experience:
    """What a run of a plan teaches.

    Arguments:
        profile: that of the plan, corrected already or not. iteration_s, peak_memory_bytes: measured, by device of the plan.

    Raises:
        InputError: plan and profile do not belong together.
    """
    predicted = predict_iteration(plan, profile)
    peaks = {device: predicted.peak_memory_bytes[device // plan.tensor] for device in sorted(peak_memory_bytes)}
    more = max((size / peaks[device] for device, size in peak_memory_bytes.items() if peaks[device]), default=1.0)
    before = profile.correction or Correction()
    slowdown = _slowdown(plan, profile, predicted.iteration_s, iteration_s)
    return Experience(
        profile.name,
        _first_digest(profile),
        digest_of(plan.cluster),
        plan.strategy,
        steps,
        predicted.iteration_s,
        iteration_s,
        peaks,
        {device: float(size) for device, size in sorted(peak_memory_bytes.items())},
        before.slowdown * slowdown,
        min(max(1.0, before.growth * min(more, _LIMIT)), _LIMIT),
    )


def _slowdown(plan: Plan, profile: ModelProfile, predicted_s: float, measured_s: float) -> float:
    """By what compute seconds are multiplied, so that what is predicted is what was measured, transfers as they are."""
    factor = 1.0
    for _ in range(_TRIES):
        if abs(predicted_s / measured_s - 1) < _CLOSE:
            break
        factor = min(max(factor * measured_s / predicted_s, 1 / _LIMIT), _LIMIT)
        own = profile.correction or Correction()
        scaled = corrected(profile, Correction(own.slowdown * factor, own.growth))
        now = replace(plan, profile_digest=scaled.digest, predicted=None)
        predicted_s = predict_iteration(now, scaled).iteration_s
    return factor


def corrected(profile: ModelProfile, to: Correction) -> ModelProfile:
    """A profile with the seconds and bytes of a correction, whatever it was corrected by before."""
    own = profile.correction or Correction()
    slower, larger = to.slowdown / own.slowdown, to.growth / own.growth

    def times(values: tuple[float, ...], factor: float) -> tuple[float, ...]:
        return tuple(value * factor for value in values)

    def changed(one: Layer | Elsewhere) -> dict[str, Any]:
        """Seconds of a layer, here or elsewhere."""
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
        step_call_s=profile.step_call_s * slower,
        correction=replace(to, digest=_first_digest(profile)),
    )


def experience_of(folder: Path, plan: Path | None, profile: ModelProfile, cluster: Cluster) -> Experience | None:
    """The run of this model on this cluster that is kept in a folder: of the plan of this name, else the longest.

    What is no such file is left out.
    """
    found = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            one = Experience.read(path)
        except HocketError:
            continue
        if one.is_of(profile, cluster):
            found.append((plan is not None and path.name == beside(plan).name, one.steps, one))
    return max(found, key=lambda each: each[:2])[2] if found else None
