"""The throughput table: lookups and validation."""

from math import inf, nan, nextafter

import numpy as np
import pytest

from hocket.errors import InputError
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.throughputs import LEAST_STEPS_PER_S, MOST_STEPS_PER_S, ThroughputTable, can_be
from hocket.scheduler.model.worker_types import ClusterSpec, Placement, WorkerType
from hocket.scheduler.readers import throughputs_json
from hocket.scheduler.simulation.workload import Workload

V100, K80 = ("v100", True), ("k80", True)


def small(alone: list[list[float]] | None = None) -> ThroughputTable:
    """One model on one and two workers, on two types, one with spread workers."""
    rows = np.array(alone or [[10.0, 2.0, 10.0], [18.0, 0.0, 12.0]])
    beside = np.zeros((2, 2, 3))
    beside[0, 0, 0] = 6.0
    return ThroughputTable((V100, K80, ("v100", False)), (("model", 1), ("model", 2)), rows, beside)


def test_the_packaged_table_is_whole() -> None:
    """26 job types on three worker types, 57 multi-worker kinds, and pairs of all."""
    table = throughputs_json.packaged()
    assert table.types == ("v100", "p100", "k80")
    assert (len(table.job_types), len(table.kinds), len(table.places)) == (26, 83, 6)
    assert (table.alone[:, :3] > 0).sum() == 3 * 83 - 3  # ResNet-50 with batches of 128 on several K80s does not fit
    assert (table.kept.max(axis=(0, 1)) <= 1.2).all()
    assert ((table.beside > 0) == (table.beside > 0).transpose(1, 0, 2)).all()


def test_columns_of_a_snapshot() -> None:
    """Spread columns exist only for measured types; single-worker jobs have 0 there."""
    table = small()
    types = WorkerType("k80", 4), WorkerType("v100", 4)
    assert table.columns(types) == (Placement(0), Placement(1))
    columns = table.columns(types, spread=True)
    assert columns == (Placement(0), Placement(1), Placement(1, False))
    cluster = ClusterSpec(types, columns)
    rows = Workload((Job("a", "model", 1.0), Job("b", "model", 1.0, 2))).rows(table)
    assert table.throughputs(rows, cluster).tolist() == [[2.0, 10.0, 0.0], [0.0, 18.0, 12.0]]
    assert table.pairs(rows, cluster).kept[0, 0].tolist() == [0.0, 0.6, 0.0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_throughput_that_is_none_is_refused(value: float) -> None:
    """Invalid throughputs are refused, with kind and place."""
    with pytest.raises(InputError, match=r"model on 1, k80: found .*expected a number >= 0"):
        small([[10.0, value, 10.0], [18.0, 0.0, 12.0]])


def test_what_the_table_does_not_know_is_told() -> None:
    """Unknown job types, scale factors and worker types are refused, with valid ones."""
    table = small()
    with pytest.raises(InputError, match=r"job a: job_type: found 'modle'.*Did you mean 'model'"):
        Workload((Job("a", "modle", 1.0),)).rows(table)
    with pytest.raises(InputError, match="job a: scale_factor: found 4; expected 1, 2 for model"):
        Workload((Job("a", "model", 1.0, 4),)).rows(table)
    with pytest.raises(
        InputError,
        match="worker type h200: found no throughputs for this type; expected a worker type of the throughput table: v100, k80",
    ):
        table.columns([WorkerType("h200", 1)])
    with pytest.raises(InputError, match="does not run on k80"):
        table.steps_per_s("model", 2, "k80", "job a")


def test_the_edges_of_plausible_throughputs() -> None:
    """Nothing, and from the least to the largest one; the next numbers outside are refused."""
    assert all(map(can_be, (0.0, LEAST_STEPS_PER_S, 1.0, MOST_STEPS_PER_S)))
    outside = (nextafter(LEAST_STEPS_PER_S, 0), nextafter(MOST_STEPS_PER_S, inf), -1.0, inf, nan)
    assert not any(map(can_be, outside))
