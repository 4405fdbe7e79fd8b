"""One simulated column gives the result of the whole plan."""

from dataclasses import replace
from itertools import pairwise
from math import gcd, lcm, sqrt
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.cost.contention import transfer_uses
from hocket.cost.stragglers import slowest
from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster, Level, Node
from hocket.planning.predict import predict
from hocket.planning.predict.symmetry import column_of
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.profile import ModelProfile
from hocket.program.passes.borders import StageCut, crossing
from hocket.strategies.base.search_space import Candidate, SearchSpace
from hocket.strategies.base.strategy import members, strategy
from tests.planning.helpers.situations import clusters, profiles
from tests.tiers import examples


@pytest.mark.parametrize("name", members())
@examples(40)
@given(profile=profiles(), cluster=clusters(), batch_size=st.integers(2, 12), data=st.data())
@pytest.mark.thinned(most=5)
def test_a_column_gives_what_the_whole_gives(
    name: str, profile: ModelProfile, cluster: Cluster, batch_size: int, data: st.DataObject
) -> None:
    """Equal seconds and bytes, for every strategy with identical columns."""
    space = SearchSpace(profile, cluster, batch_size)
    try:
        offered = [c for one in strategy(name).choices(space) for c in (one, *one.thriftier)]
    except RefusedError:
        return
    offered = [c for c in offered if column_of(profile.tensors, cluster, c.stages, batch_size, c.microbatch_size)]
    for choice in data.draw(st.lists(st.sampled_from(offered), max_size=4)) if offered else ():
        try:
            found = predict.predict_choice(space, name, choice)
        except RefusedError:
            continue
        with patch.object(predict, "column_of", lambda *_: None):
            whole = predict.predict_choice(space, name, choice)
        assert found.iteration_s == pytest.approx(whole.iteration_s, rel=1e-9)
        assert found.peak_memory_bytes == pytest.approx(whole.peak_memory_bytes)
        assert found.bubble_fraction == pytest.approx(whole.bubble_fraction, abs=1e-9)


PROFILE = chain(4, microbatch_sizes=(1,), device_type="cpu-core")
CUTS = (StageCut((0, 1), (0, 1)), StageCut((2, 3), (2, 3)))
CLUSTER = Cluster("four", (Level("server", 4, 1e9, shared=False),), "cpu-core")


def test_the_first_column() -> None:
    """The first column's devices, the other devices, and its part of the batch.

    Figures of the other columns are copies.
    """
    column = column_of(PROFILE.tensors, CLUSTER, CUTS, 8, 2)
    assert column is not None
    assert [(cut.devices, cut.beside) for cut in column.cuts] == [((0,), (1,)), ((2,), (3,))]
    assert column.batch_size == 4
    assert column.everywhere({0: 1.0, 2: 2.0}) == {0: 1.0, 1: 1.0, 2: 2.0, 3: 2.0}


@pytest.mark.parametrize("r", [2, 8])
def test_a_column_waits_for_the_slowest_of_all(r: int) -> None:
    """With varying seconds, one replica stands for all that it meets.

    The iteration equals the whole plan's, and is longer than without variance.
    """
    profile = replace(PROFILE, whole_forward_std_s=(0.2,), whole_backward_std_s=(0.5,))
    cluster = Cluster("alike", (Level("server", r, 1e9, shared=False),), "cpu-core")
    space = SearchSpace(profile, cluster, 2 * r)
    choice = Candidate((StageCut((0, 1, 2, 3), tuple(range(r))),), 1, 2 * r)
    column = column_of(profile.tensors, cluster, choice.stages, 2 * r, 1)
    assert column is not None
    found = predict.predict_choice(space, "data_parallel", choice)
    with patch.object(predict, "column_of", lambda *_: None):
        whole = predict.predict_choice(space, "data_parallel", choice)
    still = predict.predict_choice(replace(space, profile=PROFILE), "data_parallel", choice)
    assert found.iteration_s == pytest.approx(whole.iteration_s, rel=1e-12)
    assert found.iteration_s - still.iteration_s == pytest.approx(sqrt(2 * (0.2**2 + 0.5**2)) * slowest(r)[0][r])


@st.composite
def cut_up(draw: st.DrawFn) -> tuple[Cluster, tuple[StageCut, ...]]:
    """A cluster of any levels and devices, and stages on any of its devices."""
    widths = draw(st.sampled_from([(4,), (2, 2), (2, 3), (3, 2), (2, 2, 2)]))
    levels = tuple(Level(f"level{k}", width, 1e9, shared=draw(st.booleans())) for k, width in enumerate(widths))
    cluster = Cluster("drawn", levels, "cpu-core")
    if draw(st.booleans()):
        first = draw(st.integers(1, cluster.devices - 1))
        nodes = (Node("cpu-core", first), Node(draw(st.sampled_from(["cpu-core", "k80"])), cluster.devices - first))
        cluster = replace(cluster, device_type="", nodes=nodes)
    ends = sorted(draw(st.sets(st.integers(1, 3), max_size=2)) | {0, 4})
    every = draw(st.permutations(range(cluster.devices)) | st.just(list(range(cluster.devices))))
    count, at, cuts = draw(st.sampled_from([2, 2, 3])), 0, []
    for start, end in pairwise(ends):
        width = min(count * draw(st.sampled_from([1, 1, 2])), cluster.devices // count * count)
        at = 0 if at + width > cluster.devices or draw(st.integers(0, 4)) == 0 else at
        cuts.append(StageCut(tuple(range(start, end)), tuple(every[at : at + width])))
        at += width
    return cluster, tuple(cuts)


@examples(200)
@given(drawn=cut_up())
def test_columns_are_alike_where_no_two_of_them_meet(drawn: tuple[Cluster, tuple[StageCut, ...]]) -> None:
    """Devices, their kinds, the levels of messages and their links, looked at one by one."""
    cluster, cuts = drawn
    count = gcd(*(len(cut.devices) for cut in cuts))
    owners = [(device, k % count) for cut in cuts for k, device in enumerate(cut.devices)]
    kinds = [
        {(cluster.type_of(d).name, cluster.capacity_bytes(d)) for d in cut.devices[k : k + count]}
        for cut in cuts
        for k in range(0, len(cut.devices), count)
    ]
    levels, links = list[set[int]](), list[tuple[object, int]]()
    for source, target in crossing(PROFILE.tensors, cuts):
        here, there = cuts[source].devices, cuts[target].devices
        pairs = [(here[m % len(here)], there[m % len(there)]) for m in range(lcm(len(here), len(there)))]
        levels += [{cluster.level_between(*pair) for pair in pairs[m : m + count]} for m in range(0, len(pairs), count)]
        links += [
            (use.resource, m % count)
            for m, (a, b) in enumerate(pairs)
            for use in (*transfer_uses(cluster, ((a, b),)), *transfer_uses(cluster, ((b, a),)))
        ]
    alone = all(
        len({column for one, column in pairs if one == thing}) == 1 for pairs in (owners, links) for thing, _ in pairs
    )
    alike = count > 1 and alone and all(len(found) == 1 for found in (*kinds, *levels))
    assert (column_of(PROFILE.tensors, cluster, cuts, 2 * count, 1) is not None) == alike


def test_where_one_does_not_stand_for_all() -> None:
    """Unequal widths, microbatches or devices, and shared links or cores.

    Columns that change places do not qualify, either.
    """
    wide = (CUTS[0], StageCut((2, 3), (2,)))
    assert column_of(PROFILE.tensors, CLUSTER, wide, 8, 2) is None
    assert column_of(PROFILE.tensors, CLUSTER, CUTS, 6, 2) is None
    mixed = replace(CLUSTER, device_type="", nodes=(Node("cpu-core", 1), Node("k80", 3)))
    assert column_of(PROFILE.tensors, mixed, CUTS, 8, 2) is None
    servers = Cluster("two", (Level("server", 2, 1e9), Level("all", 2, 1e9)), "cpu-core")
    assert column_of(PROFILE.tensors, servers, CUTS, 8, 2) is None  # both send over their server's card
    assert column_of(PROFILE.tensors, replace(CLUSTER, host_cores=2.0), CUTS, 8, 2) is None
    crossed = (CUTS[0], StageCut((2,), (2, 3)), StageCut((3,), (1, 0)))
    assert column_of(PROFILE.tensors, CLUSTER, crossed, 8, 2) is None
