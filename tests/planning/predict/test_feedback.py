"""Feedback: the prediction of a plan that ran equals its measurement.

The next plan uses the correction.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hocket.errors import InputError, RefusedError
from hocket.hardware.change import SHARED
from hocket.hardware.cluster import Cluster, Level, Link
from hocket.hardware.link_sums import LinkSums
from hocket.planning.plan import Plan
from hocket.planning.predict.feedback import RunFeedback, beside, check_like, corrected, experience_of, learned_from
from hocket.planning.predict.predict import played, predict_iteration
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.planning.swapping.fit_host_link import on_links
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.profile import Correction, ModelProfile
from hocket.simulation.swapping.traffic import swaps_of

CLUSTER = Cluster("four", (Level("server", 4, 1e8, 1e-4),), "cpu-core")
PROFILE = chain(6, forward_s=[0.01, 0.02, 0.03, 0.01, 0.02, 0.01], device_type="cpu-core")


def plan_of(strategy: str) -> Plan:
    """The best plan of a strategy."""
    return search(PROFILE, CLUSTER, PlanRequest(16, strategies=(strategy,))).best.plan


def again(plan: Plan, profile: ModelProfile) -> Plan:
    """The plan, for another profile of the same layers."""
    return replace(plan, profile_digest=profile.digest, predicted=None)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["flush", "data_parallel", "two_bw", "model_parallel"])
@pytest.mark.parametrize("times", [0.8, 1.0, 1.3, 4.0])
def test_what_ran_is_predicted_as_it_was_measured(strategy: str, times: float) -> None:
    """The corrected prediction equals the measurement, although links do not change.

    A second correction is exact as well.
    """
    plan = plan_of(strategy)
    predicted = predict_iteration(plan, PROFILE)
    found = learned_from(plan, PROFILE, predicted.iteration_s * times, predicted.peak_memory_bytes, 100)
    known = found.applied(PROFILE)
    now = predict_iteration(again(plan, known), known)
    assert now.iteration_s == pytest.approx(predicted.iteration_s * times, rel=0.01)
    assert now.peak_memory_bytes == pytest.approx(predicted.peak_memory_bytes)
    assert found.growth == 1.0
    third = learned_from(again(plan, known), known, predicted.iteration_s, predicted.peak_memory_bytes, 100)
    assert third.slowdown == pytest.approx(1.0, rel=0.02)
    assert third.profile_digest == found.profile_digest == PROFILE.digest


def test_what_a_run_teaches_is_said_in_words() -> None:
    """The sentence gives the difference with transfers, and the factor without."""
    plan = plan_of("flush")
    predicted = predict_iteration(plan, PROFILE)
    for times, said in ((0.6, "took 40.0% less time than predicted"), (1.5, "took 50.0% more time than predicted")):
        found = learned_from(plan, PROFILE, predicted.iteration_s * times, predicted.peak_memory_bytes, 24)
        assert said in found.line
        assert f"profiled compute seconds are multiplied by {found.slowdown:.3f}" in found.line


def test_more_memory_than_was_predicted() -> None:
    """Bytes grow by the measured factor; a lower measurement changes nothing."""
    plan = plan_of("flush")
    predicted = predict_iteration(plan, PROFILE)
    more = {d: size * 1.1 for d, size in predicted.peak_memory_bytes.items()}
    found = learned_from(plan, PROFILE, predicted.iteration_s, more, 10)
    assert found.growth == pytest.approx(1.1)
    assert ", bytes by 1.100" in found.line
    grown = found.applied(PROFILE)
    assert grown.layers[0].stash_bytes == pytest.approx([1.1 * b for b in PROFILE.layers[0].stash_bytes])
    assert grown.layers[0].weights_bytes == PROFILE.layers[0].weights_bytes
    less = {d: size * 0.9 for d, size in predicted.peak_memory_bytes.items()}
    assert learned_from(plan, PROFILE, predicted.iteration_s, less, 10).growth == 1.0


def test_corrections_are_seen_in_the_text_and_do_not_pile_up() -> None:
    """A corrected profile names its correction, which replaces an earlier one.

    A profile without a correction has the same text as before.
    """
    assert "correction" not in PROFILE.to_json()
    twice = corrected(corrected(PROFILE, Correction(2.0)), Correction(3.0, 1.5))
    assert ModelProfile.from_json(twice.to_json()) == twice
    assert twice.correction == Correction(3.0, 1.5, PROFILE.digest)
    assert twice.layers[1].forward_s == pytest.approx([3 * s for s in PROFILE.layers[1].forward_s])
    varying = replace(PROFILE, whole_forward_std_s=(0.5,) * len(PROFILE.microbatch_sizes))
    assert corrected(varying, Correction(2.0)).whole_forward_std_s == (1.0,) * len(PROFILE.microbatch_sizes)
    with pytest.raises(InputError, match="slowdown"):
        Correction(0.0)


def test_which_run_counts(tmp_path: Path) -> None:
    """The run of the plan itself counts, else the longest of this profile and cluster.

    Other files are ignored.
    """
    plan = plan_of("flush")
    predicted = predict_iteration(plan, PROFILE)

    def kept(name: str, steps: int, profile: ModelProfile = PROFILE, cluster: Cluster = CLUSTER) -> None:
        own = again(replace(plan, cluster=cluster), profile)
        found = learned_from(own, profile, predicted.iteration_s * 2, predicted.peak_memory_bytes, steps)
        found.save(beside(tmp_path / name))
        assert RunFeedback.read(beside(tmp_path / name)) == found

    assert experience_of(tmp_path, None, PROFILE, CLUSTER) is None
    kept("other.yaml", 900, profile=replace(PROFILE, name="other"))
    kept("elsewhere.yaml", 900, cluster=replace(CLUSTER, name="elsewhere"))
    (tmp_path / "broken.experience.yaml").write_text("format: [")
    assert experience_of(tmp_path, None, PROFILE, CLUSTER) is None
    kept("short.yaml", 5)
    assert experience_of(tmp_path, None, PROFILE, CLUSTER) is None
    kept("a.yaml", 30)
    kept("b.yaml", 40)
    for plan_file, steps in ((None, 40), (tmp_path / "a.yaml", 30), (tmp_path / "c.yaml", 40)):
        found = experience_of(tmp_path, plan_file, PROFILE, CLUSTER)
        assert found is not None
        assert found.steps == steps
    # What was planned with it is known by what it was.
    assert found.is_of(found.applied(PROFILE), CLUSTER)


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ({}, ""),
        ({"warm_steps": 19}, "19 steps after warm-up"),
        ({"optimizer": "Adam"}, "trained with Adam"),
        ({"optimizer": ""}, "trained with no optimizer"),
        ({"dtype": "bfloat16"}, "computed in bfloat16"),
        ({"device_types": ("cpu-core", "NVIDIA H200")}, "on NVIDIA H200"),
    ],
)
def test_what_a_run_of_another_kind_took_is_not_learned(other: dict[str, Any], found: str) -> None:
    """Short runs, and runs of another optimizer, precision or device, are refused."""
    plan = plan_of("flush")
    same = {"warm_steps": 20, "optimizer": "SGD", "dtype": "float32", "device_types": ("cpu-core",)}
    if not found:
        check_like(plan.cluster, PROFILE, **same)
        return
    with pytest.raises(RefusedError) as refused:
        check_like(plan.cluster, PROFILE, **same | other)
    assert refused.value.found == found


@pytest.mark.parametrize(
    ("kind", "name", "same"),
    [
        ("h100", "NVIDIA H100 80GB HBM3", True),
        ("a100-80gb", "NVIDIA A100-SXM4-80GB", True),
        ("a100-80gb", "NVIDIA H100 80GB HBM3", False),
        ("v100-16gb", "cpu-core", False),
        ("cpu-core", "Intel cpu-core", False),
    ],
)
def test_a_type_of_the_catalogue_is_known_by_the_name_that_torch_has_for_it(kind: str, name: str, same: bool) -> None:
    """Torch's device name matches the catalogue's device type.

    A sketched profile is for a catalogue type, and a run reports torch's name.
    """
    plan = replace(plan_of("flush"), cluster=replace(CLUSTER, device_type=kind))
    if same:
        check_like(plan.cluster, PROFILE, 20, "SGD", "float32", (name,))
        return
    with pytest.raises(RefusedError, match=re.escape(f"on {name}")):
        check_like(plan.cluster, PROFILE, 20, "SGD", "float32", (name,))


def test_what_no_factor_explains_is_not_learned() -> None:
    """A run that no factor on compute seconds explains is refused.

    Examples are a hundred times the seconds, or fewer seconds than transfers alone.
    """
    plan = plan_of("flush")
    predicted = predict_iteration(plan, PROFILE)
    for times in (100.0, 1e-4):
        with pytest.raises(RefusedError, match="times the predicted seconds"):
            learned_from(plan, PROFILE, predicted.iteration_s * times, predicted.peak_memory_bytes, 100)


def swapping() -> tuple[Plan, ModelProfile, Cluster]:
    """A plan that swaps without prefetching, so that an iteration contains its swaps."""
    profile = chain(4, weights_bytes=100e6, activation_bytes=2e6, microbatch_sizes=(1,), device_type="v100-16gb")
    room = Cluster("one", (Level("server", 2, 10e9),), "v100-16gb", memory_bytes=5e8, host_memory_bytes=9e9)
    found = search(profile, room, PlanRequest(4)).best
    return found.plan, profile, room


@pytest.mark.parametrize(("slower", "latency_s"), [(0.5, 10e-6), (3.0, 10e-6), (1.0, 3e-3), (2.0, 0.0)])
@pytest.mark.parametrize("shared", [True, False])
def test_what_a_run_teaches_of_the_link_to_the_host(slower: float, latency_s: float, shared: bool) -> None:
    """A run on another host link identifies that link, and leaves compute seconds.

    The next plan is predicted with it.
    """
    plan, profile, room = swapping()
    if shared:
        room = replace(room, host_link=Link(12e9))
    plan = replace(plan, cluster=room)
    name, link = SHARED if shared else "v100-16gb", Link(12e9 / slower, latency_s)
    real = replace(plan, cluster=on_links(room, {name: link}), predicted=None)
    took = dict.fromkeys(range(2), LinkSums())
    for device, size_bytes, seconds in swaps_of(played(real, profile)):
        took[device] += LinkSums.of(size_bytes, seconds)
    measured = predict_iteration(real, profile)
    found = learned_from(plan, profile, measured.iteration_s, measured.peak_memory_bytes, 50, took)
    assert found.host_links[name].bandwidth_bytes_per_s == pytest.approx(link.bandwidth_bytes_per_s, rel=0.02)
    assert found.host_links[name].latency_s == pytest.approx(latency_s, rel=0.02, abs=1e-4)
    assert found.slowdown == pytest.approx(1.0, abs=0.02)
    assert predict_iteration(replace(plan, cluster=found.on(room)), profile).iteration_s == pytest.approx(
        measured.iteration_s, rel=0.02
    )
    assert found.is_of(profile, room)
    assert found.is_of(profile, found.on(room))
    assert "; swaps took " in found.line
    without = learned_from(plan, profile, measured.iteration_s, measured.peak_memory_bytes, 50)
    assert without.host_links == {}
    assert without.on(room) == room


def test_links_to_hosts_are_kept_in_the_file(tmp_path: Path) -> None:
    """The file keeps one link for each type, and none if none was measured."""
    plan, profile, _ = swapping()
    predicted = predict_iteration(plan, profile)
    plain = learned_from(plan, profile, predicted.iteration_s, predicted.peak_memory_bytes, 50)
    for links in ({}, {"a100-80gb": Link(9e9, 1e-3), "v100-16gb": Link(2e9)}):
        one = replace(plain, host_links=links)
        one.save(tmp_path / "one.yaml")
        assert RunFeedback.read(tmp_path / "one.yaml") == one
        assert ("host_links" in (tmp_path / "one.yaml").read_text()) == bool(links)
        assert all(f" ({name})" in one.line for name in links)
