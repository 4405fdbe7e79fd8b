"""Unrolled: the nodes of a run by their numbers: what each is, what waits for it, and of which layers it is.

Rules of this file: structure and costs as they were played; no clock.
"""

from hocket.cost.demand import Work, works
from hocket.cost.model import CostModel
from hocket.program.instruction import Instruction, Kind, computes
from hocket.simulate.kernel import locate
from hocket.simulate.tables import Layout


class Unrolled:
    """The nodes of a lowered program with its repetitions."""

    def __init__(self, layout: Layout, costs: CostModel) -> None:
        self._layout, self._costs = layout, costs
        (signature, _, index, moves), edges, _ = layout.structure
        self._templates = (signature.tolist(), index.tolist(), moves.tolist())
        self._edges = tuple(column.tolist() for column in edges[:6])
        self._kinds: dict[int, tuple[int, int]] = {}
        self._works: dict[tuple[int, int], tuple[Work, ...]] = {}

    def kind(self, n: int) -> tuple[int, int]:
        """Signature and samples of a node: nodes that agree in both cost the same."""
        if n not in self._kinds:
            local, round_ = self._local(n)
            signature, index, moves = (column[local] for column in self._templates)
            moved = round_ * self._layout.skeleton.program.stride if moves else 0
            merged = self._costs.merged_in(self._layout.skeleton.signatures[signature].members[0])
            self._kinds[n] = signature, self._costs.samples_from(index + moved, merged)
        return self._kinds[n]

    def instruction(self, n: int) -> Instruction:
        """A node's instruction; of a transfer the sender's, of a collective the first member's."""
        return self._layout.skeleton.signatures[self.kind(n)[0]].members[0]

    def computes(self, n: int) -> bool:
        """Whether a device computes in a node; what its host loads is none of that."""
        one = self.instruction(n)
        return computes(one.lane) and one.kind not in (Kind.LOAD, Kind.DROP)

    def works(self, n: int) -> tuple[Work, ...]:
        """The layers of a node in which a device computes."""
        kind = number, samples = self.kind(n)
        if kind not in self._works:
            made = self._layout.skeleton.signatures[number]
            found = works(self._costs, made.members[0], samples, made.first_bucket, made.last_bucket)
            self._works[kind] = found
        return self._works[kind]

    def successors(self, n: int) -> list[int]:
        """Nodes that wait for one, as the kernel finds them: inside the period from its own number, all others in linked lists."""
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
