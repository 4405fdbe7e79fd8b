"""Reasons why waves are not chosen by a search in which they compete."""

import re
from dataclasses import replace

import pytest

from hocket.hardware.cluster import Cluster, Level
from hocket.planning.explain.baseline_comparison import WAVES, of_profile
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.result import Search
from hocket.planning.search.search import search
from hocket.planning.waves import explain
from hocket.planning.waves.explain import why_not
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.profile import ModelProfile
from hocket.profiling.readers import pipedream
from tests.planning.waves.test_room import VGG16, ethernet, half_used

FOUR = Cluster("four", (Level("nvlink", 4, 25e9, 5e-6),), "v100-16gb")
NAMES = ("data_parallel", "model_parallel", "gpipe", "flush", "waves")
LIGHT = chain(8, activation_bytes=1e7, microbatch_sizes=(1, 2, 4), device_type="v100-16gb", forward_s=1e-2)


def told(profile: ModelProfile, cluster: Cluster, batch_size: int, **options: object) -> tuple[Search, list[str]]:
    """A search, and its sentences about waves."""
    found = search(profile, cluster, PlanRequest(batch_size, **{"strategies": NAMES, **options}))  # type: ignore[arg-type]
    return found, list(why_not(found))


def test_data_parallelism_leaves_nothing_to_fill() -> None:
    """With full compute, waves take as long and send activations in addition.

    Model parallelism and GPipe, the baselines of Wavelet, section 4.2.1, are far slower than both.
    """
    found, lines = told(LIGHT, FOUR, 16)
    assert found.best.strategy == "data_parallel"
    (line,) = lines
    assert line.startswith("waves: 4 waves x 4 partitions b")
    assert "data_parallel computes " in line
    assert "on every device, which leaves waves nothing to fill, and it sends " in line
    quickest = {name: min(c.iteration_s for c in found.candidates if c.strategy == name) for name in NAMES}
    assert quickest["waves"] < 1.1 * quickest["data_parallel"]
    assert quickest["waves"] < 0.3 * quickest["model_parallel"]
    assert quickest["waves"] < 0.9 * quickest["gpipe"]


def test_a_slow_network() -> None:
    """VGG-16 over 1 Gb/s: gradient sums cost more than waves gain.

    Servers have one GPU. A pipeline of two stages sends less.
    """
    vgg16 = pipedream.read(VGG16)
    slow = Cluster("slow", (Level("ethernet", 4, 1e9 / 8, 2e-5, shared=True),), "v100-16gb")
    found, (line,) = told(vgg16, slow, 512)
    assert found.best.strategy == "flush"
    assert " more: it sends " in line
    assert float(line.split(" takes ")[1].split("%")[0]) > 20


def test_too_little_memory() -> None:
    """Refused waves name the memory that the nearest of them lacks."""
    heavy = replace(FOUR, memory_bytes=0.12e9)
    found, (line,) = told(LIGHT, heavy, 4, microbatch_sizes=(1,))
    assert found.best.strategy in ("flush", "model_parallel", "gpipe")
    assert line.startswith("waves: ")
    assert "waves" not in {one.strategy for one in found.candidates}
    assert line.startswith("waves: refused, ")
    assert " needs " in line


def test_two_waves_on_a_device_that_is_full() -> None:
    """VGG-16 with samples that fill a device: data parallelism wins, with a reason."""
    vgg16 = pipedream.read(VGG16)
    samples, room = vgg16.microbatch_sizes[0], replace(ethernet(1, 4), memory_bytes=1e12)
    names = ("data_parallel", "tick_tock")
    found, (line,) = told(vgg16, room, 8 * samples, strategies=names, microbatch_sizes=(samples,))
    assert found.best.strategy == "data_parallel"
    assert line.startswith("tick_tock: 4 x 2 waves ")
    assert "on every device, which leaves waves nothing to fill, and it sends " in line


def test_two_waves_over_a_slow_network() -> None:
    """Two waves lose over a slow network and win inside a server.

    Samples use half of a device. On 4 + 4 GPUs over 25 Gb/s the second gradient sum makes two waves slower than
    data parallelism (Wavelet, section 4.1.2).
    """
    profile, both = half_used(pipedream.read(VGG16), 32), ethernet(2, 4)
    found, _ = told(profile, both, 512, strategies=("data_parallel", "tick_tock"), microbatch_sizes=(32,))
    wide = {
        name: min(
            c.iteration_s
            for c in found.candidates
            if c.strategy == name and c.plan.stages[0].devices == tuple(range(8))
        )
        for name in ("data_parallel", "tick_tock")
    }
    assert wide["tick_tock"] > 1.1 * wide["data_parallel"]
    assert found.best.strategy == "tick_tock"
    assert found.best.plan.stages[0].devices == (0, 1, 2, 3)


def test_fewer_waves_fit_where_replicas_do_not() -> None:
    """Two waves of four partitions fit where data parallelism does not.

    Devices have memory for half of the model. The fastest plan that fits wins, and no reason is given if it has
    waves.
    """
    profile = chain(
        8, weights_bytes=1e9, activation_bytes=1e6, microbatch_sizes=(1,), device_type="v100-16gb", forward_s=1.0
    )
    found, lines = told(profile, FOUR, 4, strategies=("data_parallel", "model_parallel", "waves"), shards=("none",))
    assert {one.strategy for one in found.candidates} == {"model_parallel", "waves"}
    assert found.best.label == "waves 2 waves x 4 partitions b1"
    assert of_profile(found).winner == WAVES
    assert lines == []
    straight = min(one.iteration_s for one in found.candidates if one.strategy == "model_parallel")
    assert found.best.iteration_s == pytest.approx(straight / 2, rel=0.1)


def test_nothing_is_said_of_what_nobody_asked_for() -> None:
    """A search without wave strategies gives no reasons."""
    assert told(LIGHT, FOUR, 16, strategies=("data_parallel", "flush"))[1] == []


def test_of_long_plans_bubbles_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """For long plans, which are not simulated again, the reason compares bubbles."""
    monkeypatch.setattr(explain, "MAX_FORWARDS", 1)
    _, (line,) = told(LIGHT, FOUR, 16, strategies=("data_parallel", "waves"))
    assert re.search(r": its bubble is \d+\.\d%, that of data_parallel \d+\.\d%$", line)
