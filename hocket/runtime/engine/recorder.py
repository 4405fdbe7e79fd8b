"""Recorder of a worker: times of its instructions and transfers.

Records are those of one segment: a run of prologue, some periods and epilogue (segment.py).
"""

import threading
from collections.abc import Callable
from typing import NamedTuple

from hocket.profiling.measure.core_time import CoreWaits
from hocket.program.instruction import Instruction
from hocket.runtime.engine.stream_handover import StreamHandover
from hocket.runtime.progress.peak_memory import PeakMemory
from hocket.runtime.stage.device import Device


class InstructionRecord(NamedTuple):
    """Times of one executed instruction.

    Attributes:
        start_s, end_s: begin and end on the worker's clock, in seconds.
        queued_s: wait of the instruction's thread for a CPU core, in seconds (see Event in program/trace/trace.py).
    """

    instruction: Instruction
    start_s: float
    end_s: float
    queued_s: float = 0.0


class EngineRecorder:
    """Records the instructions and the memory of one worker.

    Attributes:
        memory: memory of the device's tensors.
        instructions: executed instructions of the last segment, in any order; empty without a clock.
    """

    def __init__(self, device: Device, handover: StreamHandover, clock: Callable[[], float] | None) -> None:
        """Create a recorder that has no records yet.

        Arguments:
            clock: current time in seconds; None to keep only the peak of memory.
        """
        self.memory = PeakMemory(device, clock)
        self._handover, self._clock = handover, clock
        self.begin()

    def begin(self) -> None:
        """Begin a segment; the records of the last one are dropped."""
        self.instructions: list[InstructionRecord] = []
        self._meters = threading.local()  # one per thread, that is per compute or swap lane

    def now(self) -> float:
        """Return the current time in seconds; 0 without a clock."""
        return 0.0 if self._clock is None else self._clock()

    def start(self) -> float:
        """Begin an instruction of a compute or swap lane.

        Returns:
            The current time in seconds.
        """
        if self._clock is not None:
            self._look_for_waits()
        return self.now()

    def stop(self, instruction: Instruction, start_s: float) -> None:
        """Record an instruction of a compute or swap lane that ends now.

        Arguments:
            start_s: result of `start`.
        """
        if self._clock is not None:
            self._handover.synchronize()
            end_s = self._clock()
            self._look_for_waits()
            self.instructions.append(InstructionRecord(instruction, start_s, end_s, self._meters.queued_s))
            self._meters.queued_s = 0.0

    def transferred(self, instruction: Instruction, start_s: float, end_s: float | None = None) -> None:
        """Record a transfer, if there is a clock.

        Arguments:
            end_s: end of the transfer, in seconds; None if it ends now.
        """
        if self._clock is not None:
            if end_s is None:
                self._handover.synchronize()
                end_s = self._clock()
            self.instructions.append(InstructionRecord(instruction, start_s, end_s))

    def _look_for_waits(self) -> None:
        """Add the thread's wait for a CPU core since the last call.

        It is called before and after every instruction. Between two instructions, other threads of the process may have
        run while this thread was blocked. That time must not be mixed with waits inside an instruction.
        """
        meter: CoreWaits | None = getattr(self._meters, "meter", None)
        if meter is None:
            self._meters.meter, self._meters.queued_s = CoreWaits(), 0.0
        else:
            self._meters.queued_s += meter.lap()
