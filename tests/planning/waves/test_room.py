"""Number of waves: a first estimate from one wave, then one fewer each time."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import predict, predict_iteration
from hocket.planning.waves.room import Wave, WaveRoom, decrease, in_waves, room, simulated, wave_of
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.profile import ModelProfile
from hocket.profiling.readers import pipedream
from hocket.program.trace.usage import Usage, usage

NVLINK = Level("nvlink", 4, 25e9, 5e-6, shared=False)  # section 4.1.1
ETHERNET = Level("ethernet", 2, 25e9 / 8, 2e-5, shared=True)  # section 4.1.2
FOUR = Cluster("four", (NVLINK,), "v100-16gb")
VGG16 = "hocket/profiling/examples/vgg16.graph.txt"


def one_wave(held: list[float], computes: float, sums_s: tuple[float, ...] = (0.0, 0.0), **more: Any) -> Wave:
    """A wave of one device with given memory over an iteration of one second."""
    columns = np.array(held)
    found = Usage(0.0, 1.0, {0: columns}, {0: np.full(len(columns), computes)}, {0: 0.0})
    return Wave(
        **{"usage": found, "capacity_bytes": {0: 10.0}, "ring": (), "again_bytes": {}, "sums_s": sums_s, **more}
    )


def straight(profile: ModelProfile, cluster: Cluster = FOUR, batch_size: int = 1) -> Plan:
    """One wave of model parallelism: a device for each equal run of layers."""
    names, count = [layer.name for layer in profile.layers], cluster.devices
    ends = [round(len(names) * k / count) for k in range(count + 1)]
    stages = tuple(PlanStage(tuple(names[ends[s] : ends[s + 1]]), (s,)) for s in range(count))
    return Plan("model_parallel", profile.name, batch_size, batch_size, stages, cluster)


def replicas(profile: ModelProfile, cluster: Cluster, samples: int) -> Plan:
    """The tick wave of data parallelism, with the same samples on every device."""
    stage = PlanStage(tuple(layer.name for layer in profile.layers), tuple(range(cluster.devices)))
    return Plan("data_parallel", profile.name, samples * cluster.devices, samples, (stage,), cluster)


def half_used(profile: ModelProfile, samples: int, forward_share: float = 1 / 3) -> ModelProfile:
    """The same model, with samples that use half of a device.

    Four times as many samples take twice as long.
    """
    first = profile.microbatch_sizes[0]

    def layer(one: Any) -> Any:
        seconds = one.forward_s[0] + one.backward_s[0]
        each = {"forward_s": seconds * forward_share, "backward_s": seconds * (1 - forward_share)}
        found = {name: (at * samples / first, 2 * at * samples / first) for name, at in each.items()}
        for name in ("stash_bytes", "working_bytes", "backward_bytes", "fresh_bytes", "flops", "noise_s"):
            if column := getattr(one, name):
                found[name] = (column[0] / first * samples, 4 * column[0] / first * samples)
        return replace(one, **found)

    tensors = tuple(
        replace(one, size_bytes=(one.size_bytes[0] / first * samples, one.size_bytes[0] / first * 4 * samples))
        for one in profile.tensors
    )
    layers = tuple(layer(one) for one in profile.layers)
    return replace(profile, microbatch_sizes=(samples, 4 * samples), layers=layers, tensors=tensors)


def test_memory_at_other_moments() -> None:
    """A second wave's peak falls into the first one's valley.

    Together they hold 1 + 5 + 1 of 10, while twice the peak is 12. With a copy of the weights of 4 there is no
    room.
    """
    held = [6.0, 6.0, 2.0, 2.0]
    assert one_wave(held, 0.4).held_bytes(0, 2) == 6.0
    assert room(one_wave(held, 0.4)).waves == 2
    found = room(one_wave(held, 0.4, again_bytes={0: 5.0}))
    assert found == WaveRoom(1, "memory", "2 waves would need 11 B on device 0, which has 10 B")


def test_a_full_device_and_full_links() -> None:
    """A busy device, or busy links, leave no room for a second wave.

    The limit is more than half of the iteration.
    """
    assert room(one_wave([1.0], 0.5)).waves == 2
    assert room(one_wave([1.0], 0.6)) == WaveRoom(
        1, "compute", "compute is full: 2 waves would need 1.20 of device 0, one has 0.60"
    )
    assert room(one_wave([1.0], 0.2, (0.6, 1.2))) == WaveRoom(
        1, "network", "sums of gradients of 2 waves would keep links busy for 1.2 s of an iteration of 1 s"
    )


def test_memory_on_other_devices() -> None:
    """In a ring, the second wave uses each device as the first uses the one before."""
    held = {0: np.array([3.0, 1.0]), 1: np.array([1.0, 4.0]), 2: np.array([2.0, 2.0])}
    found = Usage(0.0, 1.0, held, dict.fromkeys(held, np.full(2, 1 / 3)), {})
    wave = Wave(found, dict.fromkeys(held, 6.0), (0, 1, 2), {}, (0.0, 0.1, 0.2))
    assert [wave.held_bytes(d, 2) for d in held] == [5.0, 5.0, 6.0]
    assert [wave.held_bytes(d, 3) for d in held] == [7.0] * 3
    assert wave.compute_share(1, 3) == pytest.approx(1.0)
    assert room(wave) == WaveRoom(2, "memory", "3 waves would need 7 B on device 0, which has 6 B")
    assert room(replace(wave, capacity_bytes=dict.fromkeys(held, 7.0))).limit == "devices"


def test_additive_decrease() -> None:
    """Reduce the number of waves until an iteration is as short as with one wave.

    A number that gains nothing, or does not run, is never chosen.
    """
    seconds = {1: 1.0, 2: 1.05, 3: 1.3, 4: 1.8}
    waves, tried = decrease(4, seconds.get)
    assert waves == 2
    assert [one.waves for one in tried] == [1, 4, 3, 2]
    assert [one.stretch for one in tried] == pytest.approx([0.0, 0.8, 0.3, 0.05])
    assert decrease(4, seconds.get, stretch=0.5)[0] == 3
    assert decrease(3, {1: 1.0, 2: 2.1, 3: 3.2}.get, stretch=10.0)[0] == 1
    assert decrease(4, {1: 1.0, 2: 1.0}.get)[0] == 2
    assert decrease(1, seconds.get) == (1, decrease(1, seconds.get)[1])
    with pytest.raises(InputError, match="a single wave does not run"):
        decrease(2, {}.get)


def test_waves_fill_what_model_parallelism_leaves() -> None:
    """Waves fill the idle time of model parallelism (Wavelet, figures 5 and 6).

    Each of four devices computes a quarter of the time, and the first holds its activations longest. With four
    waves every device computes all the time, and four batches take about as long as one.
    """
    profile = chain(
        8, activation_bytes=1e6, stash_bytes=1e8, microbatch_sizes=(1,), device_type="v100-16gb", forward_s=1e-2
    )
    plan = straight(profile)
    wave = wave_of(plan, profile)
    assert [wave.usage.compute_share(d) for d in range(4)] == pytest.approx([0.25] * 4, rel=0.02)
    valleys = [wave.usage.valley_share(d) for d in range(4)]
    assert valleys == sorted(valleys)
    assert valleys[0] < 0.3 < 0.7 < valleys[3]
    first = room(wave)
    assert (first.waves, first.limit) == (4, "devices")
    waves, tried = decrease(first.waves, simulated(plan, profile))
    assert (waves, len(tried)) == (4, 2)
    many = in_waves(plan, 4)
    trace, summary = predict(many, profile)
    found = usage(trace)
    assert min(found.compute_share(d) for d in range(4)) > 0.97
    assert summary.samples_per_s == pytest.approx(4 / tried[0].iteration_s, rel=0.03)
    for device in range(4):  # four hold what was foreseen from one, but for gradients that are kept to be summed
        assert summary.peak_memory_bytes[device] == pytest.approx(wave.held_bytes(device, 4), rel=0.03)


@pytest.mark.parametrize(("memory_gb", "most"), [(16.0, 4), (0.9, 3), (0.75, 3), (0.6, 2), (0.3, 1)])
def test_memory_says_how_many(memory_gb: float, most: int) -> None:
    """Less memory allows fewer waves.

    The first estimate may be one too many, because one wave does not show gradients that are kept to be summed.
    `decrease` finds the most that fit.
    """
    profile = chain(
        8, activation_bytes=1e6, stash_bytes=1e8, microbatch_sizes=(1,), device_type="v100-16gb", forward_s=1e-2
    )
    plan = straight(profile, replace(FOUR, memory_bytes=memory_gb * 1e9))
    first = room(wave_of(plan, profile))
    assert first.waves - most in (0, 1)
    assert decrease(first.waves, simulated(plan, profile))[0] == most


def ethernet(servers: int, gpus: int) -> Cluster:
    """DGX-1 servers over 25 Gb/s with given numbers of GPUs, and memory for two waves.

    A wave has 64 samples.
    """
    levels = (replace(NVLINK, width=gpus),) * (gpus > 1) + (replace(ETHERNET, width=servers),) * (servers > 1)
    return Cluster("dgx", levels, "v100-16gb", memory_bytes=64e9)


@pytest.mark.parametrize(
    ("servers", "gpus", "samples", "limit"),
    [
        (1, 2, 64, "devices"),
        (1, 4, 64, "devices"),
        (1, 8, 64, "devices"),
        (1, 8, 32, "devices"),
        (2, 1, 64, "devices"),
        (2, 4, 64, "devices"),
        (2, 4, 32, "network"),
        (2, 8, 32, "network"),
        (2, 1, 16, "network"),
    ],
)
def test_a_second_sum_over_a_slow_network(servers: int, gpus: int, samples: int, limit: str) -> None:
    """A second gradient sum has no room over a slow network (Wavelet, section 4.1).

    The model is VGG-16 (553 MB of weights) with samples that use half of a device (sections 4.1.1 and 4.1.2).
    Inside a server a second wave has room. Over 25 Gb/s its all-reduce has none ("we need an extra All-Reduce
    operation for the tock-wave tasks") if the computation that would hide it is short. With 64 samples on 4 + 4
    GPUs the sums of both waves take 95 % of the iteration.
    """
    profile = half_used(pipedream.read(VGG16), samples)
    wave = wave_of(replicas(profile, ethernet(servers, gpus), samples), profile)
    found = room(wave)
    assert (found.waves, found.limit) == (2 if limit == "devices" else 1, limit)
    gain = gained(replicas(profile, ethernet(servers, gpus), samples), profile)
    assert gain > 1.4 if limit == "devices" else gain < 1.1


def gained(plan: Plan, profile: ModelProfile) -> float:
    """Speedup of tick-tock over data parallelism with equally many samples.

    Data parallelism accumulates the gradients of these samples before its single sum.
    """
    alone = predict_iteration(replace(plan, batch_size=2 * plan.batch_size), profile)
    return alone.iteration_s / predict_iteration(in_waves(plan, 2), profile).iteration_s


def test_the_network_pays_more_than_is_gained() -> None:
    """Over 25 Gb/s, two waves of VGG-16 are slower than one, on any number of GPUs.

    There are 16 samples on each GPU. Wavelet, section 4.1.2: "wavelet even performs worse than the baseline in many
    cases". With a fifth of the weights, as in ResNet-50, two waves gain.
    """
    profile = half_used(pipedream.read(VGG16), 16)
    losses = [gained(replicas(profile, ethernet(2, gpus), 16), profile) for gpus in (1, 4, 8)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] < 1
    assert losses[2] < 0.8
    assert gained(replicas(profile, ethernet(1, 8), 16), profile) > 1.5
    light = replace(
        profile,
        layers=tuple(replace(one, gradients_bytes=one.gradients_bytes / 5, parameters=()) for one in profile.layers),
    )
    assert gained(replicas(light, ethernet(2, 8), 16), light) > 1.2


def test_a_device_that_is_full_has_no_second_wave() -> None:
    """Samples that fill the device leave no room, whatever the network and memory."""
    profile = pipedream.read(VGG16)
    samples = profile.microbatch_sizes[0]
    plan = replicas(profile, replace(ethernet(1, 4), memory_bytes=1e12), samples)
    found = room(wave_of(plan, profile))
    assert (found.waves, found.limit) == (1, "compute")
    assert gained(plan, profile) < 1.05
    assert decrease(2, simulated(plan, profile))[0] == 1


def test_waves_are_added_to_what_has_one() -> None:
    """Other strategies, and several microbatches in a wave, are refused."""
    profile = chain(4, device_type="v100-16gb")
    plan = straight(profile, batch_size=2)
    for other, said in (
        (replace(plan, strategy="gpipe"), "data_parallel or model_parallel: only plans of these strategies can run"),
        (replace(plan, microbatch_size=1), "each wave runs one microbatch"),
    ):
        with pytest.raises(InputError, match=said):
            wave_of(other, profile)
