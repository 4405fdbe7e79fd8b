"""Tensor-parallel exchanges between ranks, inside forwards and backwards.

Rules of this file: compute waits for every exchange where it stands, and all members make the same ones in the same order. Members
of one machine whose tensors live on its processor share memory for it (shared_memory.py): each copies what another needs into that one's
buffer, with no thread between them. Sums are added in the order of members, so that all have the same bits.
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

    Calls raise RuntimeError if another rank is gone or silent.

    Attributes:
        shared: whether they share memory.
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
            group: of these ranks, by member; not needed where memory is shared.
            outboxes, inboxes: of all of them but this one by rank, or of none.
        """
        self._group, self._ranks, self._own = group, list(ranks), list(ranks).index(dist.get_rank())
        self._outboxes, self._inboxes = outboxes, inboxes
        self._peers = [rank for rank in ranks if rank != dist.get_rank()]
        self.shared = all(rank in outboxes and rank in inboxes for rank in self._peers)

    def total(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all members, as a new tensor."""
        if not self.shared:
            return ProcessMembers(self._of_group).total(tensor)
        own = tensor.detach().contiguous()
        if len(self._ranks) == 2:  # in one turn, which moves as many bytes as two
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
        """A tensor of each member, all of one shape, by number."""
        if not self.shared:
            return ProcessMembers(self._of_group).gathered(tensor, width)
        found = torch.empty((width, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        self._gather(tensor.detach().contiguous(), list(found))
        return found

    def scattered(self, tensor: Tensor) -> Tensor:
        """The sum of what each member has in the row of this one."""
        if not self.shared:
            return ProcessMembers(self._of_group).scattered(tensor)
        rows = list(tensor.detach().contiguous())
        mine = rows[self._own]
        return _added(self._exchanged([mine] * len(rows), rows), mine)

    def fill(self, memory: Tensor, rooms: Sequence[slice]) -> None:
        """Fill a memory of one room for each member, all of one size, with what each has in its own."""
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
        """Gather the tensor of each rank into its place.

        This rank's tensor may be there already.
        """
        arrived = self._exchanged(places, [own] * len(places))
        for place, found in zip(places, arrived, strict=True):
            source = own if found is None else found
            if source.data_ptr() != place.data_ptr():
                place.copy_(source)

    def _exchanged(self, like: Sequence[Tensor], sent: Sequence[Tensor]) -> list[Tensor | None]:
        """Send each member what is for it, and receive from each what is as `like`; None for this one."""
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
    """The sum in the order of members, as a new tensor."""
    first, second, *others = [own if part is None else part for part in parts]
    found = first + second
    for other in others:
        found += other
    return found


def members_of(groups: Sequence[Sequence[int]], device: torch.device, shared_memory: bool) -> EngineTensorGroup:
    """Tensor-parallel group of this worker.

    A collective call of all workers, with the same disjoint groups of ranks.

    Arguments:
        device: where this worker's tensors live; shared_memory: whether memory is shared where it can be.
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
