"""Weight versions, gradients and optimizer of a stage on one device.

A version lives in a slot, with a leaf tensor for each parameter. A step updates the newest slot in place if the old
version is no longer needed. Otherwise it copies the newest slot into a free one and updates the copy. So no memory is
allocated in the steady state. With sharded steps (docs/explanation/sharding.md) a slot is flat memory: this device
steps its own shard, and the engine gathers the other shards.

The optimizer is the user's. It has one permanent parameter per name. The parameter is pointed at the slot to update, so
the optimizer's state always belongs to the newest version.

An in-place update bypasses autograd's version counters. With weight stashing no graph is alive at that time. The
`naive` strategy relies on it: there, graphs in flight use the new weights (Narayanan's dissertation, section 2.4.3).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from hocket.errors import InternalError
from hocket.profiling.checks.group_state import changed_entries, group_entries, group_key, is_group_key, load_entries
from hocket.profiling.job.derived_model.precision import sums_in
from hocket.profiling.job.learning_rate.learning_rates import Scheduled
from hocket.profiling.job.weight_average import EMA
from hocket.program.instruction import Value
from hocket.runtime.update.averaging import meet
from hocket.runtime.update.buckets import Bucket, Buckets, GradientBucket
from hocket.runtime.update.gradients import Gradients
from hocket.runtime.update.optimizer_state import counts_on_device, elementwise_keys, moved, part_of
from hocket.runtime.update.sharding import Gather, whole_state
from hocket.runtime.update.slots import WeightSlot

MASTER = "_master"
"""Key of a master weight, in a dtype of higher precision, in the optimizer's state."""
STEP = "step"
"""Key of the step counter in the state of torch's optimizers."""


class StageWeights:
    """Weight versions, gradients and optimizer of a stage.

    Attributes:
        buckets: gradient buckets.
        gradients: accumulation of weight gradients.
        optimizer: the user's optimizer; None if this device updates no parameter of the stage.
        gathers: True if only a shard is kept, and whole weights are gathered for single rounds (ZeRO-3).
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        buckets: Sequence[GradientBucket],
        optimizer: Callable[[Mapping[str, nn.Parameter]], Scheduled],
        part: tuple[int, int] = (0, 1),
        gathers: bool = False,
        masters: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Create the first version from copies of tensors.

        Arguments:
            tensors: trainable parameters by global name, in the model's order.
            buckets: gradient buckets; every name is in exactly one bucket.
            optimizer: creates the optimizer of the parameters that this device steps, by name.
            part: (number of this device's shard, number of shards).
            gathers: True to keep only that shard and to gather whole weights for single rounds.
            masters: master weights, in a dtype of higher precision, by name; None without master weights. The
                optimizer updates copies of them, and slots are casts of these copies.
        """
        long = {name: (masters or tensors)[name].dtype for name in tensors}
        self.buckets = Buckets(tensors, buckets, part, long)
        self.gradients = Gradients(self.buckets)
        self.gathers, self._apart, self._long = gathers, masters is not None, long
        self._like = {name: tensor.detach() for name, tensor in tensors.items()}
        self._free: list[WeightSlot] = []
        self._rounds: dict[int, WeightSlot] = {}
        self._current = WeightSlot.part(self.buckets, self._like) if gathers else self._new_slot(tensors)
        self._fill(tensors)
        if gathers:
            self._free.append(self._emptied_slot())
        self._masters = {name: nn.Parameter(own) for name, own in self._current.own.items()}
        if masters is not None:
            self._masters = {
                n: nn.Parameter(self.buckets.part_of(n, masters[n]).detach().clone()) for n in self._masters
            }
        self._pointed: WeightSlot | None = None
        self._point(self._current)
        self._make = optimizer
        self._scheduled = optimizer(self._masters) if self._masters else None
        self.optimizer = self._scheduled.optimizer if self._scheduled is not None else None
        self._new_groups = group_entries(self.optimizer) if self.optimizer is not None else ()

    # -- versions

    @property
    def newest(self) -> WeightSlot:
        """Slot of the newest version; this device's shard of it if weights are gathered."""
        return self._current

    @property
    def slots(self) -> tuple[WeightSlot, ...]:
        """Slots with leaves for all parameters, used or free; at least one."""
        return (*self._rounds.values(), *self._free) if self.gathers else (self._current, *self._free)

    @property
    def flats(self) -> tuple[Tensor, ...]:
        """Flat tensors with this device's shard of the newest version; empty if no weights are sharded.

        A lane that hands the weights to another CUDA stream records these tensors there (engine/stream_handover.py).
        """
        return self._current.parts

    def gathered(self, value: Value) -> WeightSlot:
        """Return the slot, with memory, into which the weights of one round are gathered.

        Arguments:
            value: name of the gathered weights.
        """
        if value.index not in self._rounds:
            self._rounds[value.index] = self._free.pop() if self._free else self._emptied_slot()
        slot = self._rounds[value.index]
        slot.parts = self._current.parts
        slot.used(1)
        return slot

    def dropped(self, value: Value, last: bool = False) -> None:
        """Drop weights that were gathered for one round.

        After a backward the slot becomes free.

        Arguments:
            last: True if no backward follows the forward.
        """
        self._rounds[value.index].used(-1)
        if value.part or last:
            self._free.append(self._rounds.pop(value.index))

    def step(
        self,
        slot: WeightSlot,
        buckets: Sequence[Bucket],
        in_place: bool,
        factor: float | Tensor = 1.0,
        training_step: int = 0,
        leave_out: bool = False,
    ) -> WeightSlot:
        """Run the optimizer: compute the next version from the newest one and gradients.

        Arguments:
            slot: slot of the newest version.
            buckets: gradients of the whole update.
            in_place: True to write over the old version, because it is no longer needed.
            factor: factor of the gradients.
            training_step: training step of the update, from 0; it determines the learning rates.
            leave_out: True to skip the optimizer; the next version then equals the newest one.

        Returns:
            Slot of the next version.
        """
        if slot is not self._current:
            raise InternalError("a step must start from the newest version")
        with torch.no_grad():
            if not in_place:
                slot = self._free.pop() if self._free else self._new_slot(self._current.leaves)
                if slot.own and not self._apart:
                    torch._foreach_copy_(list(slot.own.values()), list(self._current.own.values()))
            for bucket in () if leave_out else buckets:
                if isinstance(factor, Tensor) or factor != 1.0:
                    for tensor in bucket.parts or [g for g in bucket.gradients if g is not None]:
                        tensor.mul_(factor)
                for name, gradient in self.buckets.named(bucket):
                    self._masters[name].grad = gradient
        self._point(slot)
        if self._scheduled is not None and not leave_out:
            self._scheduled.step(training_step)
        if self._apart:
            self._cast(slot)
        for master in self._masters.values():
            master.grad = None
        self._current = slot
        return slot

    def release(self, slot: WeightSlot) -> None:
        """Release an old version; a later version reuses its slot."""
        if slot is self._current:
            raise InternalError("the newest version cannot be released")
        self._free.append(slot)

    def _new_slot(self, like: Mapping[str, Tensor]) -> WeightSlot:
        """Allocate a slot for one more version of weights with these shapes and dtypes."""
        slot = WeightSlot.whole(self.buckets, like)
        for name, leaf in slot.leaves.items():
            sums_in(leaf, self._long[name])
        self.gradients.watch(slot)
        return slot

    def _emptied_slot(self) -> WeightSlot:
        """Create a slot without memory; its first user allocates the memory."""
        slot = self._new_slot(self._like)
        slot.used(-1)
        return slot

    def _fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy weights into the newest version."""
        with torch.no_grad():
            for name, data in zip(self._current.leaves, self._current.data, strict=True):
                data.copy_(tensors[name])
            if self.gathers:
                for name, own in self._current.own.items():
                    own.copy_(self.buckets.part_of(name, tensors[name]))

    def _cast(self, slot: WeightSlot) -> None:
        if slot.own:
            with torch.no_grad():
                torch._foreach_copy_(list(slot.own.values()), [self._masters[name].data for name in slot.own])

    def _point(self, slot: WeightSlot) -> None:
        if slot is not self._pointed and not self._apart:
            for name, master in self._masters.items():
                master.data = slot.own[name]
            self._pointed = slot

    def averages(self) -> list[tuple[Tensor, Tensor]]:
        """Return the newest weights with their moving averages (`Job.ema`); weights that were never stepped have none."""
        state = self.optimizer.state if self.optimizer is not None else {}
        return [(self._current.own[n], state[m][EMA]) for n, m in self._masters.items() if EMA in state.get(m, {})]

    # -- saving and loading, between segments

    def meet(self, other: "StageWeights") -> None:
        """Set weights and optimizer state of two waves to their mean."""
        with torch.no_grad():
            for name, master in self._masters.items():
                theirs = other._masters[name]
                meet(master.data, theirs.data)
                if self.optimizer is not None and other.optimizer is not None:
                    for key, value in self.optimizer.state.get(master, {}).items():
                        if isinstance(value, Tensor):
                            meet(value, other.optimizer.state[theirs][key])
        for each in (self, other):
            if each._apart:
                each._cast(each._current)

    def described(self) -> dict[str, Tensor]:
        """Return the unsharded weights as meta tensors, in the dtype of master weights.

        Without master weights they have their own dtype.
        """
        return {n: torch.empty(t.shape, dtype=self._long[n], device="meta") for n, t in self._like.items()}

    def whole(self, gather: Gather | None = None) -> dict[str, Tensor]:
        """Return the newest unsharded weights by name, not copied.

        They are gathered if this device has only a shard. If a weight's master weight is sharded, the weight has the
        compute dtype. All other weights have the dtype in which the optimizer updates them.

        Arguments:
            gather: all-gather between replicas; needed if this device has only a shard. The call is then collective.
        """
        if not self.gathers:
            found = {name: leaf.detach() for name, leaf in self._current.leaves.items()}
            masters = self._masters if self._apart else {}
            return found | {name: master.detach() for name, master in masters.items() if name not in self.buckets.runs}
        if gather is None:
            raise InternalError("whole weights were asked for, of which this device has only its shard")
        parts, found = iter(self._current.parts), {}
        for names, flat in self.buckets.sharded():
            memory = [torch.cat(gather(next(parts))) for _ in flat.sizes]
            found.update(zip(names, flat.views(memory), strict=True))
        return {name: found[name] for name in self._like}

    def resident(self) -> Iterator[Tensor]:
        """Yield the newest weights, master weights and optimizer state."""
        yield from (*self._current.leaves.values(), *self._current.parts)
        yield from self.apart()

    def apart(self) -> Iterator[Tensor]:
        """Yield the tensors that only the optimizer uses: its state and master weights."""
        if self._apart:
            yield from self._masters.values()
        if self.optimizer is not None:
            for entries in self.optimizer.state.values():
                yield from (value for value in entries.values() if isinstance(value, Tensor))

    def state(self, gather: Gather | None = None) -> dict[str, dict[str, object]]:
        """Return the unsharded optimizer state by parameter name.

        Entries of a parameter group that steps have changed are in the state of each of its parameters
        (profiling/checks/group_state.py). If master weights are sharded, each master weight is included,
        under the key MASTER.

        Arguments:
            gather: all-gather between replicas; needed if the step is sharded. The call is then collective.
        """
        optimizer = self.optimizer
        own = {n: dict(optimizer.state.get(m, {})) if optimizer else {} for n, m in self._masters.items()}
        for name, entries in self._group_state().items():
            own[name].update(entries)
        for name in self.buckets.runs if self._apart else ():
            if name in own:
                own[name][MASTER] = self._masters[name].detach()
        for names, flat in self.buckets.sharded():
            if gather is None:
                raise InternalError("whole optimizer state was asked for, of which this device has only its shard")
            own.update(whole_state(names, flat, self.buckets.part, own, self._like[names[0]].device, gather))
        return own

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, Mapping[str, object]]) -> None:
        """Load weights and optimizer state by parameter name.

        Names of other stages are ignored.
        """
        scalars = {
            n: m for n, m in self._masters.items() if n in self.buckets.runs and n in state and not tensors[n].dim()
        }
        elementwise = elementwise_keys(scalars, lambda tried: self._make(tried).optimizer)
        with torch.no_grad():
            self._fill(tensors)
            for name, master in self._masters.items():
                if self._apart:
                    master.data.copy_(self.buckets.part_of(name, tensors[name]))
                if self.optimizer is not None and name in state:
                    shape, run = tensors[name].shape, self.buckets.runs.get(name)
                    of = elementwise.get(name, frozenset())
                    entries = {k: v for k, v in state[name].items() if not is_group_key(k)}
                    entries = {k: part_of(v, shape, run, k in of) if run else v for k, v in entries.items()}
                    counts = master.device if counts_on_device(self.optimizer, master) else None
                    self.optimizer.state[master] = {
                        k: moved(v, counts if k == STEP else master.device) for k, v in entries.items()
                    }

            if self.optimizer is not None:
                load_entries(self.optimizer, {master: name for name, master in self._masters.items()}, state)

    def _group_state(self) -> dict[str, dict[str, object]]:
        """Return the entries of parameter groups that steps have changed, by parameter name."""
        if self.optimizer is None or self._scheduled is None:
            return {}
        names = {master: name for name, master in self._masters.items()}
        changed = changed_entries(self.optimizer, self._new_groups, self._scheduled.keys)
        return {
            names[p]: {group_key(key): value for key, value in entries.items()}
            for group, entries in zip(self.optimizer.param_groups, changed, strict=True)
            for p in group["params"]
        }
