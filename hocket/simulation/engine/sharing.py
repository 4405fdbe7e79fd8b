"""Sharing of links and cores among the nodes of a run, without a clock.

Tables and rates are those of the simulation (tables.py, kernel.py), so that a replay (background/replay.py) without a
background job gives the same run.
"""

import numpy as np

from hocket.cost.model import CostModel
from hocket.simulation.engine.kernel import rate_of
from hocket.simulation.engine.tables import NodeLayout, cost_tables, use_tables


class ResourceLoads:
    """Loads of links, cores and devices, and the running nodes that cause them.

    Attributes:
        signature: number of every node's signature.
        work_s: for every node, the seconds of work, in which it may share resources, if it runs alone.
        latency_s: for every node, the seconds of latency before its work.
    """

    def __init__(self, layout: NodeLayout, costs: CostModel) -> None:
        skeleton = layout.skeleton
        size_class, (work_s, latency_s, *_) = cost_tables(skeleton, costs)
        (signature, _, index, moves), _, _ = layout.structure
        prologue, period, _ = layout.sizes
        numbers = np.arange(layout.nodes)
        rounds = np.clip((numbers - prologue) // period, 0, layout.repeats) if period else np.zeros_like(numbers)
        at = numbers - rounds * period
        # Nodes after the last repetition are those of the epilogue. Their templates follow those of the period.
        at = np.where(numbers >= prologue + period * layout.repeats, numbers - period * (layout.repeats - 1), at)
        moved = index[at] + moves[at] * rounds * skeleton.program.stride
        classes = int(size_class.max()) + 1
        self.signature: list[int] = signature[at].tolist()
        self.work_s: list[float] = work_s[signature[at] * classes + size_class[moved % len(size_class)]].tolist()
        self.latency_s: list[float] = latency_s[signature[at]].tolist()
        ptr, resource, load, sharing, _, _, capacity = use_tables(skeleton, costs)
        self._ptr, self._resource, self._load, self._sharing = (row.tolist() for row in (ptr, resource, load, sharing))
        self._capacity: list[float] = capacity.tolist()
        self._loads = [0.0] * len(self._capacity)
        self._users: list[dict[int, None]] = [{} for _ in self._capacity]
        self._most = self._greatest_loads(layout)

    def shares(self, node: int) -> bool:
        """True if a node uses a resource that others may use at the same time."""
        s = self.signature[node]
        return self._ptr[s + 1] > self._ptr[s] and self.work_s[node] > 0

    def enter(self, node: int) -> list[int]:
        """Add the loads of a node that begins to use resources.

        Returns:
            Running nodes with rates that may change, the node itself included.
        """
        return self._change(node, 1)

    def leave(self, node: int) -> list[int]:
        """Remove the loads of a node that has ended.

        Returns:
            Running nodes with rates that may change.
        """
        return self._change(node, -1)

    def rate(self, node: int) -> float:
        """Rate of a running node, relative to its rate alone; at most 1."""
        return self._rate(self.signature[node], self._loads)

    def least_rate(self, node: int) -> float:
        """Lower bound of a node's rate, if every lane runs the node with the largest load."""
        return self._rate(self.signature[node], self._most)

    def _rate(self, signature: int, loads: list[float]) -> float:
        return rate_of(signature, self._ptr, self._resource, self._sharing, self._capacity, loads)

    def _change(self, node: int, sign: int) -> list[int]:
        s, found = self.signature[node], dict.fromkeys([node] if sign > 0 else [])
        for u in range(self._ptr[s], self._ptr[s + 1]):
            resource = self._resource[u]
            self._loads[resource] += sign * self._load[u]
            users = self._users[resource]
            if sign > 0:
                users[node] = None
            else:
                users.pop(node, None)
            found.update(users)
        return list(found)

    def _greatest_loads(self, layout: NodeLayout) -> list[float]:
        """Load of each resource if every lane runs its node with the largest load."""
        most: list[dict[int, float]] = [{} for _ in self._capacity]
        for part in layout.skeleton.parts:
            for s, lane in set(zip(part.signature, part.lane, strict=True)):
                for u in range(self._ptr[s], self._ptr[s + 1]):
                    own = most[self._resource[u]]
                    own[lane] = max(own.get(lane, 0.0), self._load[u])
        return [sum(own.values()) for own in most]
