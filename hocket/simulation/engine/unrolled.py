"""Nodes of a run by number: instruction, successors and layers.

This module has structure and costs of the run, and no times.
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
    """Nodes of a lowered program with all repetitions of its period.

    Nodes are given by number n: prologue, repetitions of the period, epilogue (`NodeLayout`).
    """

    def __init__(self, layout: NodeLayout, costs: CostModel) -> None:
        self._layout, self._costs = layout, costs
        (signature, _, index, moves), edges, _ = layout.structure
        self._templates = (signature.tolist(), index.tolist(), moves.tolist())
        self._edges = tuple(column.tolist() for column in edges[:6])
        self._kinds: dict[int, tuple[int, int]] = {}
        self._works: dict[tuple[int, int], tuple[LayerDemand, ...]] = {}

    def kind(self, n: int) -> tuple[int, int]:
        """Number of a node's signature, and samples; the two determine its cost."""
        if n not in self._kinds:
            local, round_ = self._local(n)
            signature, index, moves = (column[local] for column in self._templates)
            moved = round_ * self._layout.skeleton.program.stride if moves else 0
            merged = self._costs.merged_in(self._layout.skeleton.signatures[signature].members[0])
            self._kinds[n] = signature, self._costs.samples_from(index + moved, merged)
        return self._kinds[n]

    def instruction(self, n: int) -> Instruction:
        """Instruction of a node; of a transfer the send, of a collective the first rank's.

        It is the instruction of the node's signature, so its microbatch may be another one.
        """
        return self._layout.skeleton.signatures[self.kind(n)[0]].members[0]

    def computes(self, n: int) -> bool:
        """True if a node is computation: a forward, backward, norm or step.

        Loads and swaps are not computation, even if they are in a compute lane.
        """
        return self.instruction(n).kind in COMPUTES

    def works(self, n: int) -> tuple[LayerDemand, ...]:
        """Layers of a compute node, with the share of the device that each needs."""
        kind = number, samples = self.kind(n)
        if kind not in self._works:
            made = self._layout.skeleton.signatures[number]
            found = works(self._costs, made.members[0], samples, made.first_bucket, made.last_bucket)
            self._works[kind] = found
        return self._works[kind]

    def utilization(self, outcome: SimulationResult) -> dict[int, float]:
        """Mean share of each device that layers need while the device computes.

        Arguments:
            outcome: times of the nodes.

        Returns:
            A share by device, from 0 to 1; 1 for a device that never computes.
        """
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
        """Numbers of the nodes that wait for the end of node n."""
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
    """Seconds between `begin` and `end` that at least one span covers.

    Arguments:
        spans: begin and end of each span; shape (spans, 2).
    """
    total, reached = 0.0, begin
    for first, last in spans[np.argsort(spans[:, 0], kind="stable")].tolist():
        if last > reached:
            total += max(0.0, min(last, end) - max(first, reached))
            reached = max(reached, min(last, end))
    return total
