"""Plain and compiled loops of the partitioner give the same answers.

Neither numba nor its compiler is loaded for small searches.
"""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.profiling.analytic import synthetic
from hocket.strategies.pipedream_partition import buffers, kernel
from hocket.strategies.pipedream_partition.level import PartitionOptions
from hocket.strategies.pipedream_partition.memory import MemoryRule
from hocket.strategies.pipedream_partition.partition import partition
from tests.tiers import examples

ROOT = Path(__file__).resolve().parents[3]


def _answer(profile, cluster, options, plain_work):
    """Answer of a process with `plain_work` left before it changes to compiled loops."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffers, "PLAIN_WORK", plain_work)
        patch.setattr(buffers, "_worked", 0)
        assert buffers.Loops(2, 1, 1).compiled == (plain_work == 0)
        try:
            return repr(partition(profile, cluster, 1, options))
        except RefusedError as refused:
            return str(refused)


@pytest.mark.slow
@examples(60)
@given(
    st.integers(2, 9),
    st.integers(0, 10_000),
    st.sampled_from([0.1, 0.4]),
    st.sampled_from([(3,), (4, 2), (2, 3), (2, 2, 2)]),
    st.lists(st.sampled_from([2e6, 5e6, 5e7]), min_size=3, max_size=3),
    st.none() | st.sampled_from([2e6, 2e7, 1e8]),
    st.builds(MemoryRule, recompute=st.booleans(), weight_versions=st.none() | st.integers(1, 2)),
    st.builds(
        PartitionOptions,
        replicate=st.booleans(),
        exact_devices=st.booleans(),
        max_stages=st.none() | st.integers(1, 3),
        sync=st.sampled_from(["paper", "ring"]),
    ),
)
def test_compiled_loops_answer_as_the_plain_ones(layers, seed, edges, widths, speeds, limit, rule, options):
    """Both give the same plan to the last bit, or refuse with the same words.

    This holds for any graph, cluster and options.
    """
    levels = tuple(Level(f"l{k}", width, speed) for k, (width, speed) in enumerate(zip(widths, speeds, strict=False)))
    profile, cluster = synthetic.branching(layers, seed=seed, edges=edges), Cluster("c", levels, "x")
    capacity = () if limit is None else (limit,) * cluster.devices
    options = replace(options, rule=replace(rule, capacity_bytes=capacity))
    assert _answer(profile, cluster, options, 0) == _answer(profile, cluster, options, 1e18)


@pytest.mark.slow
def test_a_short_table_is_made_longer(monkeypatch):
    """A sweep with too few rows is repeated with more rows, and gives the same answer."""
    profile = synthetic.branching(9, seed=1, edges=0.1)
    cluster = Cluster("c", (Level("in", 4, 5e7), Level("out", 2, 5e6)), "x")
    options = PartitionOptions(MemoryRule((1e8,) * cluster.devices), replicate=False)
    wide = [_answer(profile, cluster, options, plain_work) for plain_work in (0, 1e18)]
    short, sweep = [], kernel.sweep

    def counted(*arguments):
        found = sweep(*arguments)
        short.append(found[0] < 0)
        return found

    monkeypatch.setattr(buffers, "FEW_STATES", 1)
    assert _answer(profile, cluster, options, 0) == wide[0]
    monkeypatch.setattr(kernel, "sweep", counted)
    assert _answer(profile, cluster, options, 1e18) == wide[1]
    assert any(short)


@pytest.mark.slow
@pytest.mark.parametrize(("plain_work", "loaded"), [("1_000_000", "False"), ("0", "True")])
def test_numba_is_loaded_only_where_there_is_enough_to_do(plain_work, loaded):
    """A small search runs without numba in a new process."""
    code = (
        "import sys; from hocket.profiling.analytic import synthetic; from hocket.hardware.cluster import *;"
        "from hocket.strategies.pipedream_partition import buffers as loops; from hocket.strategies.pipedream_partition.partition import PartitionOptions, partition;"
        f"loops.PLAIN_WORK = {plain_work};"
        "c = Cluster('c', (Level('a', 2, 1e7), Level('b', 2, 1e6)), 'x');"
        "found = partition(synthetic.chain(12), c, 1, PartitionOptions(replicate=False));"
        "print(len(found.stages), 'numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, text=True)
    stages, answer = done.stdout.split()
    assert int(stages) > 1
    assert answer == loaded
