"""Slots: memory for the weight versions of one stage on one device.

When a version is no longer needed, a later version reuses its slot. So no memory is allocated in the steady state. With
sharded steps (docs/explanation/sharding.md) a slot is flat memory, and this device steps its own shard. If weights are
gathered for single rounds, a slot without users has no memory.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from hocket.runtime.update.buckets import Buckets


class WeightSlot:
    """Memory of one weight version.

    Attributes:
        leaves: leaf tensors by name.
        data: aliases of the leaves without autograd.
        own: part of each weight that this device's optimizer updates, by name; weights without such a part are left
            out.
        flats: flat memory of the weights with sharded steps, with a shard for each replica.
        parts: this device's shard of each flat tensor.
        sizes_bytes: bytes of each flat tensor.
        users: number of current users, for weights that are gathered for single rounds. Without users the slot has no
            memory. Tensors that autograd has saved stay valid, because weights are gathered again into the same
            storages.
    """

    __slots__ = ("data", "flats", "leaves", "own", "parts", "sizes_bytes", "users")

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
        self.data = [leaf.data for leaf in self.leaves.values()]
        self.own = dict(zip(self.leaves, self.data, strict=True))
        self.flats: tuple[Tensor, ...] = ()
        self.parts: tuple[Tensor, ...] = ()
        self.sizes_bytes: tuple[int, ...] = ()
        self.users = 1

    @classmethod
    def whole(cls, buckets: Buckets, like: Mapping[str, Tensor]) -> "WeightSlot":
        """Allocate a slot for one more version of whole weights.

        Arguments:
            like: weights with the same shapes and dtypes, by name.
        """
        places: dict[str, Tensor] = {}
        pieces: dict[str, Tensor] = {}
        flats: list[Tensor] = []
        parts: list[Tensor] = []
        for names, flat in buckets.sharded():
            memory = flat.memory(like[names[0]].device)
            places.update(zip(names, flat.views(memory), strict=True))
            # In-place steps must bypass autograd's version counters: see weight_versions.py.
            memory = tuple(each.data for each in memory)
            own = [flat.part(each, buckets.part) for each in memory]
            pieces.update(zip(names, flat.pieces(own, buckets.part), strict=True))
            flats += memory
            parts += own
        found = {n: places[n] if n in places else torch.empty_like(t, requires_grad=False) for n, t in like.items()}
        slot = cls(found)
        slot.own = {n: pieces.get(n, data) for n, data in slot.own.items() if buckets.steps(n)}
        slot.flats, slot.parts = tuple(flats), tuple(parts)
        slot.sizes_bytes = tuple(flat.nbytes for flat in flats)
        return slot

    @classmethod
    def part(cls, buckets: Buckets, like: Mapping[str, Tensor]) -> "WeightSlot":
        """Allocate a slot for this device's shard of the weights only, without leaves.

        Arguments:
            like: weights with the same shapes and dtypes, by name.
        """
        slot, pieces = cls({}), dict[str, Tensor]()
        parts: list[Tensor] = []
        for names, flat in buckets.sharded():
            device = like[names[0]].device
            sizes = zip(flat.sizes, flat.dtypes, strict=True)
            own = [torch.zeros(size // flat.parts, dtype=dtype, device=device) for size, dtype in sizes]
            pieces.update(zip(names, flat.pieces(own, buckets.part), strict=True))
            parts += own
        slot.own = {name: pieces[name] for name in like if buckets.steps(name)}
        slot.parts = tuple(parts)
        return slot

    def used(self, by: int) -> None:
        """Count one more or one less user of these weights.

        Memory is allocated for the first user and freed after the last.

        Arguments:
            by: 1 or -1.
        """
        self.users += by
        if self.users == (by > 0):
            for flat, size_bytes in zip(self.flats, self.sizes_bytes, strict=True):
                flat.untyped_storage().resize_(size_bytes if self.users else 0)
