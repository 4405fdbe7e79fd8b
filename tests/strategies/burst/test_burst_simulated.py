"""Seconds of `plan_burst` against the simulated program of its plan.

The two cost models share no code.
"""

from dataclasses import replace
from math import lcm

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.hardware.cluster import Link
from hocket.planning.predict.predict import predict_choice
from hocket.strategies.base.search_space import Candidate, SearchSpace, cut
from hocket.strategies.burst.constraints import BurstLimits
from hocket.strategies.burst.planner import DeviceCounts, plan_burst
from tests.strategies.helpers.burst_models import chain, flat, seconds
from tests.tiers import examples

BATCH = 8


@st.composite
def cases(draw):
    """A chain, devices of its layers, and a switch that never blocks.

    All-reduces take nearly no time.
    """
    layers = draw(st.integers(1, 4))
    sizes_bytes = draw(st.lists(st.sampled_from((1.0, 7.0)), min_size=layers - 1, max_size=layers - 1))
    counts = draw(st.lists(st.sampled_from((1, 2, 4)), min_size=layers, max_size=layers))
    bandwidth, latency_s = draw(st.sampled_from((0.5, 2.0, 50.0))), draw(st.sampled_from((0.0, 1.0)))
    cluster = flat(4, bandwidth, latency_s, ring=Link(1e12, 0.0))
    return chain(draw(seconds(layers)), sizes_bytes, [1e-9] * layers), dict(enumerate(counts)), cluster


@given(cases())
@examples(60)
def test_the_program_takes_what_was_planned(case):
    """The simulated program is at most as slow as planned, on links of its own.

    It is equally fast if the number of devices changes once, by at most a factor of two: then nothing that runs ahead
    can hide a transfer.
    """
    profile, only, cluster = case
    plan = plan_burst(profile, cluster, BATCH, BurstLimits(None), DeviceCounts(only=only))
    microbatches = lcm(*(len(run.devices) for run in plan.runs))
    space = SearchSpace(profile, cluster, BATCH)
    stages = tuple(
        replace(cut(space, run.layers, run.devices), merged=microbatches // len(run.devices)) for run in plan.runs
    )
    choice = Candidate(stages, BATCH // microbatches, microbatches)
    simulated_s = predict_choice(space, "burst_parallel", choice).iteration_s
    assert simulated_s <= plan.iteration_s * (1 + 1e-6)
    few, many = (found(len(run.devices) for run in plan.runs) for found in (min, max))
    if len(plan.runs) <= 2 and many <= 2 * few:
        assert simulated_s == pytest.approx(plan.iteration_s)
