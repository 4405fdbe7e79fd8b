"""Engine overhead of an instruction, without its layers."""

from itertools import accumulate, count

import pytest
import torch
import torch.distributed as dist

from hocket.program.instruction import COMPUTE, Instruction, Kind
from hocket.runtime.engine.recorder import InstructionRecord
from hocket.training.calibrate import engine_overhead
from hocket.training.calibrate.engine_overhead import instruction_s, message_s, post_s


def test_what_does_not_grow_with_the_layers_is_the_engines() -> None:
    """Time that does not grow with the layers is engine overhead.

    With a clock that advances by 3 s at each call, every instruction takes 3 s, for any number of layers.
    """
    seconds = count(step=3.0)
    assert instruction_s(rounds=4, clock=lambda: next(seconds)) == 3.0


def test_it_is_a_fraction_of_a_second() -> None:
    """The overhead of an instruction is above 0 and far below a second.

    It is measured with the machine's own clock.
    """
    assert 0 < instruction_s(rounds=20) < 0.1


def test_the_time_to_post_is_the_mean_over_receives_and_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of it is the gap before a backward that follows a forward, half the gap before a load after a backward.

    A lane is made up: instructions of 1 s, with gaps of 2 s before a forward, 3 s before a backward and 5 s before a
    load. The first microbatch has long gaps.
    """
    kinds = [Kind.LOAD, Kind.FORWARD, Kind.BACKWARD] * 8
    gaps_s = {Kind.LOAD: 5.0, Kind.FORWARD: 2.0, Kind.BACKWARD: 3.0}
    starts = accumulate(1.0 + (90.0 if k < 3 else gaps_s[kind]) for k, kind in enumerate(kinds))
    records = [
        InstructionRecord(Instruction(kind, 0, k // 3, 0, COMPUTE), start_s, start_s + 1.0)
        for k, (kind, start_s) in enumerate(zip(kinds, starts, strict=True))
    ]
    monkeypatch.setattr(engine_overhead, "_trained", lambda *_: records)
    monkeypatch.setattr(dist, "get_rank", lambda: 3)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(dist, "all_reduce", lambda found: None)
    assert post_s(4) == 4.0
    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    assert post_s(4) == 0.0


def test_a_message_is_the_output_of_the_first_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the width that the next stage reads, and takes from the end of one forward to the begin of the other."""
    forward = [InstructionRecord(Instruction(Kind.FORWARD, 0, m, 0, COMPUTE), 10.0 * m, 10.0 * m + 1) for m in range(8)]

    def gather(gathered: list[torch.Tensor], own: torch.Tensor) -> None:
        gathered[0].copy_(own)
        gathered[1].copy_(own + 0.25)

    monkeypatch.setattr(engine_overhead, "_trained", lambda *_: forward)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_gather", gather)
    size_bytes, seconds = message_s(4)
    stages = engine_overhead._captured(engine_overhead._STAGE, 2)
    border = next(tensor for tensor in stages.tensors if tensor.source == len(engine_overhead._STAGE) - 2)
    assert size_bytes == engine_overhead._SAMPLES * border.shape[-1] * 4
    assert seconds == 0.25
