"""StageWeights: the weight versions of one stage on one device, its gradient buckets and its optimizer.

Rules of this file: a version lives in a slot, a leaf tensor for each parameter; a step either updates the newest slot
in place (nobody needs the old version any more) or copies it into a free one and updates that, so that no memory is
allocated in the steady state. Where replicas share the step (docs/sharding.md) a slot is flat memory, of which this device
steps its own part, and the engine gathers the others. The optimizer is the user's own and sees one parameter per name for good, which is
pointed at the slot that it is to update: its state always belongs to the newest version.

An update in place goes past autograd's version counters. With weight stashing no graph is alive then; `naive`, where
graphs in flight shall see the new weights (section 2.4.3), relies on it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hocket.errors import InputError, InternalError
from hocket.profile.precision import sums_in
from hocket.program.instruction import Value
from hocket.run.flat import Flat
from hocket.run.sharding import Gather, part_of, whole_state

MASTER = "_master"
"""Key of a weight that the optimizer keeps in a longer type, beside its state."""
_CHANGES = "A model whose course follows from the data cannot be planned."


class Slot:
    """One weight version: `leaves` by name, of which `data` are aliases that autograd does not watch.

    Attributes:
        own: what of `data` this device's optimizer steps, by name; weights of which it has nothing are left out.
        flats: memory of which replicas have a part each; parts: this device's of each.
        users: of weights that are gathered for single rounds: who needs them now. Without any they have no memory; what autograd
            keeps of them stays good, for they are gathered again into the same storages.
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

    def used(self, by: int) -> None:
        """One more (1) or one less (-1) needs these weights: memory comes with the first and goes with the last."""
        self.users += by
        if self.users == (by > 0):
            for flat, size_bytes in zip(self.flats, self.sizes_bytes, strict=True):
                flat.untyped_storage().resize_(size_bytes if self.users else 0)


class Bucket:
    """Weight gradients of one bucket of one update, summed over microbatches so far.

    Attributes:
        gradients: one for each parameter of the bucket; None where none has arrived.
        flats: one tensor for each type, of which the gradients are views, if the bucket is summed over devices; else ().
        parts: what of each is this device's when sums are scattered; else all.
    """

    __slots__ = ("flats", "gradients", "number", "parts", "views")

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.gradients: list[Tensor | None] = [None] * size
        self.flats: tuple[Tensor, ...] = ()
        self.parts: tuple[Tensor, ...] = ()
        self.views: tuple[Tensor, ...] = ()

    def own_part(self) -> None:
        """Before sums are scattered: this device's part gets memory of its own."""
        self.parts = tuple(torch.empty_like(part) for part in self.parts)

    def drop_whole(self) -> None:
        """Sums have been scattered: nothing but the part is needed any more."""
        self.gradients = [None if g is None else g.new_empty(0) for g in self.gradients]
        self.flats = self.views = ()


Ready = Callable[[Bucket], None]


class StageWeights:
    """See the head of this file.

    Attributes:
        optimizer: the user's, or None for a stage without parameters.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        buckets: Sequence[Sequence[str]],
        summed: Sequence[bool],
        optimizer: Callable[[Iterable[Tensor]], Optimizer],
        scattered: Sequence[bool] = (),
        part: tuple[int, int] = (0, 1),
        gathers: bool = False,
        masters: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Make slot 0 from copies of these tensors.

        Arguments:
            tensors: trainable parameters by global name, in the model's order.
            buckets: names of each bucket; every name in exactly one.
            summed: for each bucket, whether it is summed over devices and therefore lies in one flat tensor.
            scattered: for each bucket, whether this device gets a part of the sum only, and steps that part of its weights.
            part: which part, of how many.
            gathers: only that part is kept, and whole weights are gathered for single rounds.
            masters: the same in a longer type, of which copies are what the optimizer works on: slots are casts of them.
        """
        if sorted(tensors) != sorted(name for bucket in buckets for name in bucket):
            raise InternalError(f"buckets {list(buckets)} are not a partition of {list(tensors)}")
        self._buckets, self._summed = tuple(tuple(b) for b in buckets), tuple(summed)
        self._place = {name: (b, k) for b, names in enumerate(self._buckets) for k, name in enumerate(names)}
        self._free: list[Slot] = []
        self._free_buckets: dict[int, list[Bucket]] = {b: [] for b in range(len(self._buckets))}
        self._scattered, self._part = tuple(scattered) or (False,) * len(self._buckets), part[0]
        self._flats = tuple(
            Flat.of([tensors[name] for name in names], part[1] if scatters else 1)
            for names, scatters in zip(self._buckets, self._scattered, strict=True)
        )
        self.gathers = gathers
        self._apart = masters is not None
        self._long = {name: (masters or tensors)[name].dtype for name in tensors}
        self._sums = tuple(
            flat.of_types([self._long[name] for name in names])
            for names, flat in zip(self._buckets, self._flats, strict=True)
        )
        self._rounds: dict[int, Slot] = {}
        self._like = {name: tensor.detach() for name, tensor in tensors.items()}
        self._current = self._kept_part() if gathers else self._new_slot(tensors)
        self._fill(tensors)
        if gathers:
            self._free.append(self._emptied(self._new_slot(tensors)))
        self._masters = {name: nn.Parameter(own) for name, own in self._current.own.items()}
        if masters is not None:
            self._masters = {n: nn.Parameter(self._part_of(n, masters[n]).detach().clone()) for n in self._masters}
        self._pointed: Slot | None = None
        self._point(self._current)
        self.optimizer = optimizer(list(self._masters.values())) if self._masters else None
        # State of the backward pass that is running.
        self._active: list[Bucket] = []
        self._fresh = True
        self._left: list[int] = []
        self._published = 0
        self._ready: Ready | None = None
        self._touched: list[set[int]] = [set() for _ in self._buckets]
        self._expected: list[int] | None = None

    # -- versions

    @property
    def newest(self) -> Slot:
        """The slot of the newest version; where weights are gathered, this device's part of it."""
        return self._current

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Slots with all leaves, whatever is in them: one at least."""
        return (*self._rounds.values(), *self._free) if self.gathers else (self._current, *self._free)

    @property
    def flats(self) -> tuple[Tensor, ...]:
        """What lanes hand on of a part."""
        return self._current.parts

    def gathered(self, value: Value) -> Slot:
        """The slot into which weights are gathered for one round, with memory."""
        if value.index not in self._rounds:
            self._rounds[value.index] = self._free.pop() if self._free else self._emptied(self._new_slot(self._like))
        slot = self._rounds[value.index]
        slot.parts = self._current.parts
        slot.used(1)
        return slot

    def dropped(self, value: Value) -> None:
        """What was gathered for one round is not needed any more; behind a backward the slot is for another."""
        self._rounds[value.index].used(-1)
        if value.part:
            self._free.append(self._rounds.pop(value.index))

    def step(self, slot: Slot, buckets: Sequence[Bucket], in_place: bool, factor: float | Tensor = 1.0) -> Slot:
        """Make the next version from the newest one and these gradients; returns the slot that holds it.

        Arguments:
            in_place: nobody needs the old version any more.
            factor: what the gradients are multiplied by first.
        """
        if slot is not self._current:
            raise InternalError("a step must start from the newest version")
        with torch.no_grad():
            if not in_place:
                slot = self._free.pop() if self._free else self._new_slot(self._current.leaves)
                if slot.own and not self._apart:
                    torch._foreach_copy_(list(slot.own.values()), list(self._current.own.values()))
            for bucket in buckets:
                if isinstance(factor, Tensor) or factor != 1.0:
                    for tensor in bucket.parts or [g for g in bucket.gradients if g is not None]:
                        tensor.mul_(factor)
                for name, gradient in self.named(bucket):
                    self._masters[name].grad = gradient
        self._point(slot)
        if self.optimizer is not None:
            self.optimizer.step()
        if self._apart:
            self._cast(slot)
        for master in self._masters.values():
            master.grad = None
        self._current = slot
        return slot

    def release(self, slot: Slot) -> None:
        """Nobody needs this version any more: its memory is for a later one."""
        if slot is self._current:
            raise InternalError("the newest version cannot be released")
        self._free.append(slot)

    def named(self, bucket: Bucket) -> Iterator[tuple[str, Tensor]]:
        """The gradients in a bucket that this device's step is to use, by name."""
        names, own = self._buckets[bucket.number], bucket.gradients
        if self._scattered[bucket.number]:
            own = list(self._flats[bucket.number].pieces(bucket.parts, self._part))
        for name, arrived, gradient in zip(names, bucket.gradients, own, strict=True):
            if arrived is not None and gradient is not None and name in self._masters:
                yield name, gradient

    def _new_slot(self, like: Mapping[str, Tensor]) -> Slot:
        """Memory for one more version of such tensors."""
        places: dict[str, Tensor] = {}
        pieces: dict[str, Tensor] = {}
        flats: list[Tensor] = []
        parts: list[Tensor] = []
        for names, flat, scatters in zip(self._buckets, self._flats, self._scattered, strict=True):
            if scatters and names:
                memory = flat.memory(like[names[0]].device)
                places.update(zip(names, flat.views(memory), strict=True))
                memory = tuple(
                    each.data for each in memory
                )  # as of what is stepped in place: see the head of this file
                own = [flat.part(each, self._part) for each in memory]
                pieces.update(zip(names, flat.pieces(own, self._part), strict=True))
                flats += memory
                parts += own
        slot = Slot(
            {n: places[n] if n in places else torch.empty_like(t, requires_grad=False) for n, t in like.items()}
        )
        slot.own = {n: pieces.get(n, data) for n, data in slot.own.items() if n not in pieces or pieces[n].numel()}
        slot.flats, slot.parts = tuple(flats), tuple(parts)
        slot.sizes_bytes = tuple(flat.nbytes for flat in flats)
        for name, leaf in slot.leaves.items():
            sums_in(leaf, self._long[name])
            bucket, position = self._place[name]
            if self._summed[bucket]:
                leaf.register_post_accumulate_grad_hook(self._hook(bucket, position))  # type: ignore[no-untyped-call]
        return slot

    def _kept_part(self) -> Slot:
        """This device's part of all weights, in memory of its own."""
        slot, pieces = Slot({}), dict[str, Tensor]()
        parts: list[Tensor] = []
        for names, flat in zip(self._buckets, self._flats, strict=True):
            if names:
                device = self._like[names[0]].device
                sizes = zip(flat.sizes, flat.dtypes, strict=True)
                own = [torch.zeros(size // flat.parts, dtype=dtype, device=device) for size, dtype in sizes]
                pieces.update(zip(names, flat.pieces(own, self._part), strict=True))
                parts += own
        slot.own = {name: pieces[name] for name in self._like if pieces[name].numel()}
        slot.parts = tuple(parts)
        return slot

    @staticmethod
    def _emptied(slot: Slot) -> Slot:
        slot.used(-1)
        return slot

    def _fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Take these weights."""
        with torch.no_grad():
            for name, data in zip(self._current.leaves, self._current.data, strict=True):
                data.copy_(tensors[name])
            if self.gathers:
                for name, own in self._current.own.items():
                    own.copy_(tensors[name].reshape(-1)[slice(*self._runs[name])])

    @property
    def _runs(self) -> dict[str, tuple[int, int]]:
        """Which numbers of each scattered parameter are this device's."""
        return {
            name: run
            for names, flat, scatters in zip(self._buckets, self._flats, self._scattered, strict=True)
            for name, run in zip(names, flat.runs(self._part), strict=True)
            if scatters
        }

    def _cast(self, slot: Slot) -> None:
        if slot.own:
            with torch.no_grad():
                torch._foreach_copy_(list(slot.own.values()), [self._masters[name].data for name in slot.own])

    def _point(self, slot: Slot) -> None:
        if slot is not self._pointed and not self._apart:
            for name, master in self._masters.items():
                master.data = slot.own[name]
            self._pointed = slot

    # -- gradients

    def begin(self, slot: Slot, sums: Sequence[Bucket], ready: Ready | None = None) -> None:
        """Before a backward pass: gradients will be added to `sums`, or to fresh buckets when there are none.

        Arguments:
            ready: called with each bucket that is summed over devices, in order, as soon as its last gradient is there.
        """
        self._fresh, self._ready, self._published = not sums, ready, 0
        self._active = list(sums) or [self._take_bucket(b) for b in range(len(self._buckets))]
        self._left = list(self._expected or map(len, self._buckets))
        if not self._fresh:
            for bucket, names in zip(self._active, self._buckets, strict=True):
                for name, gradient in zip(names, bucket.views or bucket.gradients, strict=True):
                    slot.leaves[name].grad = gradient

    def end(self, slot: Slot) -> tuple[Bucket, ...]:
        """After a backward pass: the buckets with what it added."""
        for b, (bucket, names) in enumerate(zip(self._active, self._buckets, strict=True)):
            for k, name in enumerate(names):
                leaf = slot.leaves[name]
                if not self._summed[b]:
                    bucket.gradients[k] = leaf.grad
                elif bucket.gradients[k] is None and b >= self._published:
                    bucket.views[k].zero_()
                leaf.grad = None
        if self._expected is None:
            self._expected = [len(touched) for touched in self._touched]
        self._publish(len(self._active))
        found, self._active, self._ready = tuple(self._active), [], None
        return found

    def recycle(self, bucket: Bucket) -> None:
        """Nobody needs these sums any more: the flat memory is for a later update."""
        if bucket.flats:
            bucket.gradients = [None] * len(bucket.gradients)
            self._free_buckets[bucket.number].append(bucket)

    def _take_bucket(self, number: int) -> Bucket:
        if self._free_buckets[number]:
            return self._free_buckets[number].pop()
        bucket = Bucket(number, len(self._buckets[number]))
        if self._summed[number]:
            flat = self._sums[number]
            bucket.flats = bucket.parts = flat.memory(
                next((t.device for t in self._like.values()), torch.device("cpu"))
            )
            bucket.views = flat.views(bucket.flats)
            if self._scattered[number]:
                bucket.parts = tuple(flat.part(memory, self._part) for memory in bucket.flats)
        return bucket

    def _hook(self, bucket: int, position: int) -> Callable[[Tensor], None]:
        """What happens as soon as a parameter's gradient is there: it moves into the flat tensor and is counted."""

        def accumulated(leaf: Tensor) -> None:
            active = self._active[bucket]
            if self._fresh:
                view = active.views[position]
                with torch.no_grad():
                    view.copy_(leaf.grad)  # type: ignore[arg-type]
                leaf.grad = view
            if self._expected is None:
                self._touched[bucket].add(position)
            elif position not in self._touched[bucket]:
                name = self._buckets[bucket][position]
                raise InputError(f"parameter {name}", "a gradient", "none, as in the first backward pass", _CHANGES)
            active.gradients[position] = leaf.grad
            self._left[bucket] -= 1
            if self._left[bucket] == 0 and self._ready is not None and self._expected is not None:
                done = self._published
                while done < len(self._left) and self._left[done] <= 0:
                    done += 1
                self._publish(done)

        return accumulated

    def _publish(self, until: int) -> None:
        """Hand out the buckets up to a number, in the order of bucket numbers (rule 2 of the program's meaning)."""
        if self._ready is not None:
            for b in range(self._published, until):
                if self._summed[b]:
                    self._ready(self._active[b])
            self._published = max(self._published, until)

    # -- saving and loading, between segments

    def described(self) -> dict[str, Tensor]:
        """What `whole` and `state` give together as weights, on meta."""
        return {n: torch.empty(t.shape, dtype=self._long[n], device="meta") for n, t in self._like.items()}

    def _part_of(self, name: str, tensor: Tensor) -> Tensor:
        """Of a whole weight what this device steps."""
        return tensor.reshape(-1)[slice(*self._runs[name])] if name in self._runs else tensor

    def whole(self, gather: Gather | None = None) -> dict[str, Tensor]:
        """The newest weights by name, not copied, as the optimizer has them; gathered where this device has a part only, and of
        weights whose masters it has parts of as compute has them.

        Arguments:
            gather: see `state`.
        """
        if not self.gathers:
            found = {name: leaf.detach() for name, leaf in self._current.leaves.items()}
            masters = self._masters if self._apart else {}
            return found | {name: master.detach() for name, master in masters.items() if name not in self._runs}
        if gather is None:
            raise InternalError("weights of which others have parts")
        parts, found = iter(self._current.parts), {}
        for names, flat in zip(self._buckets, self._flats, strict=True):
            memory = [torch.cat(gather(next(parts))) for _ in flat.sizes] if names else []
            found.update(zip(names, flat.views(memory), strict=True))
        return {name: found[name] for name in self._like}

    def resident(self) -> Iterator[Tensor]:
        """The newest weights, as compute and the optimizer have them, and the optimizer's state."""
        yield from (*self._current.leaves.values(), *self._current.parts)
        if self._apart:
            yield from self._masters.values()
        if self.optimizer is not None:
            for entries in self.optimizer.state.values():
                yield from (value for value in entries.values() if isinstance(value, Tensor))

    def state(self, gather: Gather | None = None) -> dict[str, dict[str, object]]:
        """Optimizer state by parameter name; a weight of which this device has a part of the master, the master, too, as MASTER.

        Arguments:
            gather: where replicas share the step: the state of all parts is put together, a collective call of theirs.
        """
        optimizer = self.optimizer
        own = {n: dict(optimizer.state.get(m, {})) if optimizer else {} for n, m in self._masters.items()}
        for name in self._runs if self._apart else ():
            if name in own:
                own[name][MASTER] = self._masters[name].detach()
        for names, flat, scatters in zip(self._buckets, self._flats, self._scattered, strict=True):
            if scatters and names:
                if gather is None:
                    raise InternalError("optimizer state of which others have parts")
                device = self._like[names[0]].device
                own.update(whole_state(names, flat, self._part, own, device, gather))
        return own

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, Mapping[str, object]]) -> None:
        """Take weights and optimizer state by parameter name; names that are not of this stage are ignored."""
        with torch.no_grad():
            self._fill(tensors)
            for name, master in self._masters.items():
                if self._apart:
                    master.data.copy_(self._part_of(name, tensors[name]))
                if self.optimizer is not None and name in state:
                    shape, run = tensors[name].shape, self._runs.get(name)
                    entries = {k: part_of(v, shape, run) if run else v for k, v in state[name].items()}
                    self.optimizer.state[master] = {key: _moved(value, master) for key, value in entries.items()}


def _moved(value: object, like: Tensor) -> object:
    # Step counters stay where the optimizer keeps them, on the CPU; moments lie beside their parameter.
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone() if value.dim() == 0 else value.detach().to(like.device, copy=True)
