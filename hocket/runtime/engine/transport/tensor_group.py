"""Tensor-parallel exchanges between ranks, inside forwards and backwards.

The compute thread waits for every exchange in place. All ranks make the same exchanges in the same order. CPU ranks of
one machine use shared memory (shared_memory.py): each copies its data into the other ranks' buffers, without further
threads. Sums are added in rank order, so that all ranks have the same bits.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from hocket.runtime.engine.transport.connect import connect
from hocket.runtime.engine.transport.shared_memory import Inbox, Outbox
from hocket.runtime.tensor_parallel.process_group import ProcessMembers, lent


class EngineTensorGroup:
    """Tensor-parallel group as one rank sees it (profiling/tensor_parallel/group.py).

    Calls raise RuntimeError if another rank was lost or does not answer.

    Attributes:
        shared: True if the ranks share memory.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        ranks: Sequence[int],
        outboxes: Mapping[int, Outbox],
        inboxes: Mapping[int, Inbox],
    ) -> None:
        """Prepare the group without communication.

        Arguments:
            group: process group of the ranks, in order; None if they share memory.
            ranks: global ranks of the group, in order.
            outboxes, inboxes: connections to all other ranks by global rank; empty without shared memory.
        """
        self._group, self._ranks, self._own = group, list(ranks), list(ranks).index(dist.get_rank())
        self._outboxes, self._inboxes = outboxes, inboxes
        self._peers = [rank for rank in ranks if rank != dist.get_rank()]
        self.shared = all(rank in outboxes and rank in inboxes for rank in self._peers)

    def total(self, tensor: Tensor) -> Tensor:
        """All-reduce: sum a tensor over all ranks, as a new tensor."""
        if not self.shared:
            return ProcessMembers(self._of_group).total(tensor)
        own = tensor.detach().contiguous()
        if len(self._ranks) == 2:  # one exchange moves as many bytes as reduce-scatter and all-gather
            return _added(self._exchanged([own, own], [own, own]), own)
        flat = own.reshape(-1)
        each = -(-flat.numel() // len(self._ranks))
        parts = [flat[k * each : (k + 1) * each] for k in range(len(self._ranks))]
        mine = parts[self._own]
        mine = _added(self._exchanged([mine] * len(parts), parts), mine)
        found = torch.empty_like(flat)
        self._gather(mine, [found[k * each : (k + 1) * each] for k in range(len(parts))])
        return found.view(tensor.shape)

    def gathered(self, tensor: Tensor, width: int) -> Tensor:
        """All-gather in rank order, as a new tensor: (...) to (width, ...).

        Arguments:
            width: number of ranks.
        """
        if not self.shared:
            return ProcessMembers(self._of_group).gathered(tensor, width)
        found = torch.empty((width, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        self._gather(tensor.detach().contiguous(), list(found))
        return found

    def scattered(self, tensor: Tensor) -> Tensor:
        """Reduce-scatter: sum every rank's row for this rank, (width, ...) to (...)."""
        if not self.shared:
            return ProcessMembers(self._of_group).scattered(tensor)
        rows = list(tensor.detach().contiguous())
        mine = rows[self._own]
        return _added(self._exchanged([mine] * len(rows), rows), mine)

    def fill(self, memory: Tensor, rooms: Sequence[slice]) -> None:
        """All-gather in place: complete a buffer of which each rank has filled one slice.

        Arguments:
            memory: the buffer.
            rooms: slice of each rank in the buffer, in rank order; all of one size.
        """
        if self.shared:
            self._gather(memory[rooms[self._own]], [memory[room] for room in rooms])
        else:
            whole = lent(memory)
            self._of_group._allgather_base(whole, whole[rooms[self._own]]).wait()

    @property
    def _of_group(self) -> dist.ProcessGroup:
        if self._group is None:
            raise RuntimeError("no process group, and no memory that all members share")
        return self._group

    def _gather(self, own: Tensor, places: Sequence[Tensor]) -> None:
        """All-gather: copy the tensor of each rank into its place.

        Arguments:
            own: this rank's tensor; it may be in its place already.
            places: tensors to write, by rank.
        """
        arrived = self._exchanged(places, [own] * len(places))
        for place, found in zip(places, arrived, strict=True):
            source = own if found is None else found
            if source.data_ptr() != place.data_ptr():
                place.copy_(source)

    def _exchanged(self, like: Sequence[Tensor], sent: Sequence[Tensor]) -> list[Tensor | None]:
        """Send a tensor to each rank, and receive one from each.

        Arguments:
            like: tensors with the shapes and dtypes to receive, by rank.
            sent: tensors to send, by rank.

        Returns:
            Received tensors by rank; None for this rank.
        """
        arriving = {r: self._inboxes[r].post(like[k].nbytes) for k, r in enumerate(self._ranks) if k != self._own}
        for k, rank in enumerate(self._ranks):
            if k != self._own and (work := self._outboxes[rank].send(sent[k].detach())) is not None:
                work.wait()
        found: list[Tensor | None] = []
        for k, rank in enumerate(self._ranks):
            if k == self._own:
                found.append(None)
                continue
            memory, work = arriving.pop(rank)
            work.wait()
            found.append(memory.view(like[k].dtype).view(like[k].shape))
        return found


def _added(parts: Sequence[Tensor | None], own: Tensor) -> Tensor:
    """Sum tensors in rank order, as a new tensor; `own` replaces None."""
    first, second, *others = [own if part is None else part for part in parts]
    found = first + second
    for other in others:
        found += other
    return found


def members_of(groups: Sequence[Sequence[int]], device: torch.device, shared_memory: bool) -> EngineTensorGroup:
    """Create the tensor-parallel group of this worker.

    This is a collective call of all workers, with the same disjoint groups of ranks.

    Arguments:
        groups: global ranks of each group.
        device: torch device of this worker's tensors.
        shared_memory: True to share memory where possible.
    """
    pairs = [(a, b) for ranks in groups for a in ranks for b in ranks if a != b]
    outboxes, inboxes, joined = connect(pairs if shared_memory and device.type == "cpu" else ())
    mine = next(ranks for ranks in groups if dist.get_rank() in ranks)
    if joined.issuperset(pairs):
        return EngineTensorGroup(None, mine, outboxes, inboxes)
    made = {tuple(ranks): dist.new_group(list(ranks)) for ranks in groups}[tuple(mine)]
    if device.type == "cuda":  # NCCL connects at first use
        dist.all_reduce(torch.zeros(1, device=device), group=made)
    return EngineTensorGroup(made, mine, {}, {})
