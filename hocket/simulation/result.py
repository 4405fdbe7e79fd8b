"""Result of a simulation: times, memory and trace."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hocket.cost.model import CostModel
from hocket.cost.sizes import PlanSizes
from hocket.program.program import Program
from hocket.program.trace.trace import Trace
from hocket.simulation.engine.nodes import EPILOGUE, PERIOD, ProgramPart
from hocket.simulation.engine.tables import NodeLayout


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """Result of one simulated run.

    Attributes:
        program: the simulated program.
        repeats: number of repetitions of its steady-state period.
        layout: numbering of the nodes (simulation/engine/nodes.py).
        costs: seconds and bytes of instructions.
        start_s: start of each node.
        end_s: end of each node.
        cause: for each node, the node that ended last of all that it waited for; -1 for none.
        peak_memory_bytes: peak memory by device.
        records: (seconds, device, bytes) after every change of memory, or empty arrays.
        late_s: for each collective, the expected seconds from the latest mean arrival to the arrival of its slowest
            rank; 0 for other nodes; empty if compute seconds do not vary.
        wall_s: seconds that lowering and simulating took.
    """

    program: Program
    repeats: int
    layout: NodeLayout
    costs: CostModel
    start_s: np.ndarray
    end_s: np.ndarray
    cause: np.ndarray
    peak_memory_bytes: dict[int, float]
    records: tuple[np.ndarray, np.ndarray, np.ndarray]
    wall_s: float
    late_s: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def instructions(self) -> int:
        """Number of instructions that the run executed, over all devices."""
        return self.layout.skeleton.counts(self.layout.repeats)

    @property
    def makespan_s(self) -> float:
        """Seconds from the start of the run to the end of its last instruction."""
        return float(self.end_s.max(initial=0.0))

    def _events(self, part: ProgramPart) -> tuple[np.ndarray, ...]:
        """Columns of the trace for the instructions of prologue, period or epilogue.

        Instructions of the period are included in all repetitions.

        Returns:
            Lane, kind, stage, index, label, start and end.
        """
        prologue, period, _ = self.layout.sizes
        repeats, stride = self.layout.repeats, self.layout.skeleton.program.stride
        rows = np.array(part.rows, dtype=np.int64).reshape(len(part.rows), 8)
        lane, first, last, kind, stage, index, label, batch = rows.T
        rounds = np.zeros((1, 1), dtype=np.int64)
        offset = rounds + (0, prologue, prologue + repeats * period)[part.number]
        if part.number == PERIOD:
            rounds = np.arange(repeats)[:, None]
            offset = offset + rounds * period
        if part.number == EPILOGUE:
            rounds = rounds + repeats
        moved = index + rounds * stride // batch
        same = (np.broadcast_to(column, moved.shape).ravel() for column in (lane, kind, stage))
        text = np.broadcast_to(label, moved.shape).ravel()
        times = (self.start_s[first + offset].ravel(), self.end_s[last + offset].ravel())
        return (*same, moved.ravel(), text, *times)

    @cached_property
    def trace(self) -> Trace:
        """Trace of the whole run."""
        parts = [self._events(part) for part in self.layout.skeleton.parts]
        lane, kind, stage, index, label, start_s, end_s = (np.concatenate(c) for c in zip(*parts, strict=True))
        seconds, device, size = self.records
        devices = self.program.devices
        sizes = PlanSizes(self.costs, self.program)
        held = [sizes.resident(d) for d in devices]
        return Trace(
            lanes=self.layout.skeleton.lanes,
            labels=self.layout.skeleton.labels,
            lane=lane,
            kind=kind,
            stage=stage,
            index=index,
            label=label,
            start_s=start_s,
            end_s=end_s,
            memory_device=np.concatenate((np.array(devices, dtype=np.int64), device)),
            memory_s=np.concatenate((np.zeros(len(devices)), seconds)),
            memory_bytes=np.concatenate((np.array(held, dtype=float), size)),
            meta={"source": "simulated", "program": self.program.name, "repeats": self.repeats},
        )
