"""Gradient buckets, and all-reduces after the last backward of an update."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.program.instruction import Instruction, Kind
from hocket.program.passes.expand import expand
from hocket.program.passes.gradients import buckets_of, gathers, reductions
from hocket.program.passes.tasks import Task, Work
from hocket.program.rule import Rule
from tests.program.helpers.programs import pipeline


@given(
    sizes=st.lists(st.sampled_from([0.0, 1.0, 5.0, 30.0]), min_size=1, max_size=12),
    limit=st.sampled_from([1.0, 6.0, 40.0]),
)
def test_buckets_hold_every_layer_once_last_first(sizes: list[float], limit: float) -> None:
    """Buckets contain every layer once, in the order of the backward.

    Each bucket but the last has reached the limit, but not without its last layer.
    """
    buckets = buckets_of(sizes, limit)
    assert [layer for bucket in buckets for layer in bucket] == list(reversed(range(len(sizes))))
    for bucket in buckets[:-1]:
        assert sum(sizes[i] for i in bucket) >= limit
    for bucket in buckets:
        weighty = [sizes[i] for i in bucket if sizes[i] > 0]
        assert sum(weighty[:-1]) < limit
    if any(sizes):
        assert all(any(sizes[i] > 0 for i in bucket) for bucket in buckets)


def test_buckets_by_hand() -> None:
    """A bucket closes when it is full. Layers without weights join the open one."""
    assert buckets_of([10, 0, 20, 5, 0, 30], 25) == ((5, 4), (3, 2, 1), (0,))
    assert buckets_of([1, 1, 1], 100) == ((2, 1, 0),)
    assert buckets_of([0, 0], 100) == ((1, 0),)


def backward(microbatch: int, device: int, buckets: int = 1, width: int = 2) -> list[Instruction]:
    """All-reduces after a backward of one replicated stage.

    An update has four microbatches.
    """
    stages, rule = pipeline((width,), buckets=buckets), Rule("sync", (4,), (0,))
    found = expand(stages, rule, device, Task(Work.BACKWARD, 0, microbatch))[-1]
    return reductions(stages, rule, found)


@pytest.mark.parametrize(("microbatch", "device", "count"), [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1), (6, 0, 1)])
def test_only_the_last_backward_of_an_update_on_each_replica(microbatch: int, device: int, count: int) -> None:
    """Only the last backward of an update on each replica has all-reduces.

    Microbatches 0 and 2 run on device 0, 1 and 3 on device 1.
    """
    assert len(backward(microbatch, device)) == count


def test_an_all_reduce_for_each_bucket() -> None:
    """There is one all-reduce for each bucket, in the lane of the group.

    They are in the order of the buckets. The sum takes over the accumulator's memory.
    """
    found = backward(2, 0, buckets=3)
    assert [one.writes[0].part for one in found] == [0, 1, 2]
    for one in found:
        assert (one.kind, one.group, one.lane) == (Kind.ALL_REDUCE, (0, 1), "reduce@0,1")
        assert one.reads == one.frees


def test_nobody_to_sum_with() -> None:
    """A stage on one device has no all-reduce."""
    assert backward(3, 0, width=1) == []


def test_replicas_that_share_a_step_get_parts_and_gather() -> None:
    """Replicas with a sharded step use reduce-scatters, and a gather after the step.

    Weights that stages share are all-reduced. The gather has a separate lane.
    """
    stages = pipeline((2, 1), buckets=2, tied=((0, 1),), shard="optimizer")
    rule = Rule("sync", (2, 2), (0, 0))
    last = expand(stages, rule, 0, Task(Work.BACKWARD, 0, 0))[-1]
    found = reductions(stages, rule, last)
    assert [one.kind for one in found] == [Kind.REDUCE_SCATTER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE]
    assert [one.lane for one in found] == ["reduce@0,1", "reduce@0,1", "reduce@0,1,2"]
    (step,) = expand(stages, rule, 0, Task(Work.UPDATE, 0, 3))
    (gather,) = gathers(stages, rule, step)
    assert (gather.kind, gather.group, gather.lane) == (Kind.ALL_GATHER, (0, 1), "gather@0,1")
    assert gather.name == "all_gather 0 u4 w.0v4"
    assert set(gather.reads) < set(step.writes)
    assert gathers(stages, rule, expand(stages, rule, 2, Task(Work.UPDATE, 1, 3))[0]) == []
