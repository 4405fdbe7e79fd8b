"""Small planning problems, drawn by hypothesis: profiles, clusters, batches."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from hocket.hardware.cluster import Cluster, Level
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.profile import ModelProfile
from tests.planning.helpers.overlaps import models

Draw = Callable[[st.SearchStrategy[Any]], Any]


@st.composite
def profiles(draw: Draw, most: int = 7) -> ModelProfile:
    """Chains of unlike layers, some with skips, some of seconds that vary."""
    n = draw(st.integers(2, most))

    def column(values: list[float]) -> list[float]:
        return draw(st.lists(st.sampled_from(values), min_size=n, max_size=n))

    skips = [(a, b) for b in range(n) for a in range(b - 1)]
    found = chain(
        n,
        forward_s=column([0.001, 0.002, 0.003, 0.007]),
        backward_s=column([0.001, 0.004, 0.009]),
        activation_bytes=column([1e3, 1e5, 1e6]),
        weights_bytes=column([0.0, 1e5, 4e6]),
        skips=draw(st.lists(st.sampled_from(skips), unique=True, max_size=1)) if skips else (),
        microbatch_sizes=draw(st.sampled_from([(1,), (1, 2), (1, 2, 4)])),
        device_type="cpu-core",
    )
    share = draw(st.sampled_from([0.0, 0.0, 0.05, 0.3]))
    names = (("whole_forward_std_s", "forward_s"), ("whole_backward_std_s", "backward_s"))
    deviations = {
        to: tuple(share * float(found.column(name, size).sum()) for size in found.microbatch_sizes)
        for to, name in names
    }
    return replace(found, **deviations) if share else found


@st.composite
def clusters(draw: Draw) -> Cluster:
    """One or two levels, shared or not, fast or slow; some on hosts with fewer cores than devices, some of processes of one
    machine, whose engine takes its time; some of which it is known what all-reduces and computation take from each other."""
    rate = st.sampled_from([1e7, 1e8, 1e9, 1e10])
    latency = st.sampled_from([0.0, 1e-5, 1e-3])
    known = st.builds(lambda model, factor: model.scaled(factor, 1.0), models(), st.sampled_from([1e-2, 1.0]))
    overlap = st.one_of(st.none(), st.none(), known)
    widths = draw(st.sampled_from([(2,), (3,), (4,), (2, 2), (3, 2)]))
    levels = tuple(
        Level(f"level{k}", width, draw(rate), draw(latency), draw(st.booleans()), overlap=draw(overlap))
        for k, width in enumerate(widths)
    )
    cores = draw(st.sampled_from([None, None, 1.0, 2.0]))
    return Cluster(
        "drawn",
        levels,
        "cpu-core",
        host_cores=cores,
        transfer_cores=0.5 if cores else 0.0,
        collective_cores=draw(st.sampled_from([None, 0.9])) if cores else None,
        sender_copies=draw(st.booleans()),
        post_s=draw(st.sampled_from([0.0, 1e-5, 2e-3])),
        instruction_s=draw(st.sampled_from([0.0, 1e-4])),
    )
