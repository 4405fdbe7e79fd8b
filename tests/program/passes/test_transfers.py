"""Sends and their receives mirror each other, in whole programs as well."""

from dataclasses import replace

import pytest

from hocket.program.instruction import Instruction, Kind, ValueKind, receive_lane, send_lane
from hocket.program.passes.expand import expand
from hocket.program.passes.tasks import Task, Work
from hocket.program.passes.transfers import receive_of, sends
from hocket.program.rule import Rule
from tests.program.helpers.programs import CASES, Case, pipeline

STAGES = pipeline((2, 1, 1), skips=((0, 2),))
RULE = Rule("sync", (4, 4, 4), (0, 0, 0))


def of(work: Work, stage: int, index: int, device: int) -> list[Instruction]:
    """The sends after one task."""
    return sends(STAGES, expand(STAGES, RULE, device, Task(work, stage, index))[-1])


def test_an_activation_goes_to_every_reader() -> None:
    """An activation goes to every stage that reads it.

    Its memory is freed when it was sent.
    """
    found = of(Work.FORWARD, 0, 1, 1)
    assert [(one.peer, one.lane) for one in found] == [(2, send_lane(2)), (3, send_lane(3))]
    for one in found:
        assert (one.kind, one.device, one.index) == (Kind.SEND, 1, 1)
        assert one.reads == one.frees
        assert one.reads[0].what is ValueKind.ACTIVATION


def test_a_gradient_goes_back_to_the_replica_that_ran_the_forward() -> None:
    """A gradient goes back to the replica that ran the forward."""
    found = of(Work.BACKWARD, 2, 3, 3)
    assert sorted(one.peer for one in found) == [1, 2]
    assert {one.reads[0].what for one in found} == {ValueKind.GRADIENT}


def test_nothing_is_sent_to_oneself() -> None:
    """Two stages on one device pass values without a transfer."""
    both = tuple(replace(stage, devices=(0,)) for stage in pipeline((1, 1)))
    rule = Rule("sync", (1, 1), (0, 0))
    assert sends(both, expand(both, rule, 0, Task(Work.FORWARD, 0, 0))[-1]) == []


def test_a_receive_writes_what_its_send_read() -> None:
    """A receive writes its send's values, on the peer, in the lane of the sender."""
    for one in of(Work.FORWARD, 0, 0, 0):
        other = receive_of(one)
        assert (other.kind, other.device, other.peer) == (Kind.RECEIVE, one.peer, one.device)
        assert other.lane == receive_lane(one.device)
        assert other.writes == one.reads
        assert (other.stage, other.index) == (one.stage, one.index)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_receive_lanes_mirror_send_lanes(case: Case) -> None:
    """Receives have exactly the order of the peer's sends.

    This holds in every part of every strategy's program.
    """
    program = case.program()
    seen = 0
    for part in (program.prologue, program.period, program.epilogue):
        for (device, lane), row in part.items():
            if lane.startswith("send>"):
                peer = int(lane.removeprefix("send>"))
                other = part[peer, receive_lane(device)]
                assert [one.reads for one in row] == [one.writes for one in other]
                seen += len(row)
    assert seen or len({stage.devices for stage in program.stages}) == 1
