"""Nodes of a run by number: instruction, successors and layers.

This module has structure and costs of the run, and no clock.
"""

import numpy as np

from hocket.cost.background.device_share import LayerDemand, works
from hocket.cost.model import CostModel
from hocket.program.instruction import Instruction
from hocket.program.trace.usage import COMPUTES
from hocket.simulation.engine.kernel import locate
from hocket.simulation.engine.tables import NodeLayout
from hocket.simulation.result import SimulationResult


class Unrolled:
    """Nodes of a lowered program with all its repetitions."""

    def __init__(self, layout: NodeLayout, costs: CostModel) -> None:
        self._layout, self._costs = layout, costs
        (signature, _, index, moves), edges, _ = layout.structure
        self._templates = (signature.tolist(), index.tolist(), moves.tolist())
        self._edges = tuple(column.tolist() for column in edges[:6])
        self._kinds: dict[int, tuple[int, int]] = {}
        self._works: dict[tuple[int, int], tuple[LayerDemand, ...]] = {}

    def kind(self, n: int) -> tuple[int, int]:
        """Signature and number of samples of a node; they determine its cost."""
        if n not in self._kinds:
            local, round_ = self._local(n)
            signature, index, moves = (column[local] for column in self._templates)
            moved = round_ * self._layout.skeleton.program.stride if moves else 0
            merged = self._costs.merged_in(self._layout.skeleton.signatures[signature].members[0])
            self._kinds[n] = signature, self._costs.samples_from(index + moved, merged)
        return self._kinds[n]

    def instruction(self, n: int) -> Instruction:
        """Instruction of a node: the sender's or the first member's if there are several."""
        return self._layout.skeleton.signatures[self.kind(n)[0]].members[0]

    def computes(self, n: int) -> bool:
        """True if a node is computation.

        Loads and swaps are no computation, even if the compute lane waits for them.
        """
        return self.instruction(n).kind in COMPUTES

    def works(self, n: int) -> tuple[LayerDemand, ...]:
        """Layers of a compute node, with their demand."""
        kind = number, samples = self.kind(n)
        if kind not in self._works:
            made = self._layout.skeleton.signatures[number]
            found = works(self._costs, made.members[0], samples, made.first_bucket, made.last_bucket)
            self._works[kind] = found
        return self._works[kind]

    def utilization(self, outcome: SimulationResult) -> dict[int, float]:
        """Mean demand of each device while it computes; 1 for a device that never does."""
        needed: dict[int, float] = {}
        spans: dict[int, list[tuple[float, float]]] = {device: [] for device in outcome.program.devices}
        for n, (start_s, end_s) in enumerate(zip(outcome.start_s.tolist(), outcome.end_s.tolist(), strict=True)):
            if end_s > start_s and self.computes(n):
                device = self.instruction(n).device
                mean = sum(work.fraction * work.demand for work in self.works(n))
                needed[device] = needed.get(device, 0.0) + mean * (end_s - start_s)
                spans[device].append((start_s, end_s))
        busy_s = {device: covered(np.array(own), 0.0, outcome.makespan_s) for device, own in spans.items() if own}
        return {device: min(1.0, needed[device] / busy_s[device]) if device in busy_s else 1.0 for device in spans}

    def successors(self, n: int) -> list[int]:
        """Nodes that wait for node n.

        As in the kernel, edges inside the period are relative numbers, and other edges are linked lists.
        """
        t_ptr, t_step, _, x_head, x_next, x_to = self._edges
        prologue, period, _ = self._layout.sizes
        base = prologue + period * self._layout.repeats
        local, found = self._local(n)[0] - prologue, []
        if 0 <= local < period:
            steps = t_step[t_ptr[local] : t_ptr[local + 1]]
            found = [n + step for step in steps if prologue <= n + step < base]
        x = x_head[n]
        while x >= 0:
            found.append(x_to[x])
            x = x_next[x]
        return found

    def _local(self, n: int) -> tuple[int, int]:
        prologue, period, _ = self._layout.sizes
        return locate(n, prologue, period, prologue + period * self._layout.repeats, self._layout.repeats)


def covered(spans: np.ndarray, begin: float, end: float) -> float:
    """Seconds between two times that at least one span covers.

    Arguments:
        spans: rows of (begin, end).
    """
    total, reached = 0.0, begin
    for first, last in spans[np.argsort(spans[:, 0], kind="stable")].tolist():
        if last > reached:
            total += max(0.0, min(last, end) - max(first, reached))
            reached = max(reached, min(last, end))
    return total
