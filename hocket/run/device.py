"""Device: executes the compute instructions of one device on its values.

Rules of this file: what an instruction reads, writes and frees is what it says; which values are there, and when an
instruction may start, is the engine's business. Objects behind the values:

    in      tensors of the batch by name            act, grad   tuple of tensors, in the order of the border
    stash   Stash                                   w, full     Slot
    dw, sum Bucket                                  opt         the stage's StageWeights
    sq, norm Squares                                lent        Bucket, of the other wave
    end     nothing: that it is there says all
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from hocket.errors import InputError, InternalError, ProgramError
from hocket.features import Feature
from hocket.passes.swaps import sizes_of
from hocket.plan.plan import Plan
from hocket.profile.capture import Captured
from hocket.program.instruction import SWAPS, Instruction, Kind, Value, What
from hocket.program.order import heir_of, piece, together, waves
from hocket.program.program import Program
from hocket.run.buckets import Bucket
from hocket.run.bundles import Border, Pieces
from hocket.run.clipping import Clipping
from hocket.run.data import Stream
from hocket.run.scale import Scale
from hocket.run.sharding import Gather, check_sharing
from hocket.run.split import StagePart, split
from hocket.run.stage_runner import StageRunner
from hocket.run.stash import Stash
from hocket.run.streams import has_streams
from hocket.run.swap_memory import MemoryManager
from hocket.run.swap_states import HostCopy
from hocket.run.swapping import Swapper, budgets_of
from hocket.run.waves import alone, averaged, meet
from hocket.run.weights import MASTER

Store = MutableMapping[Value, Any]
Publish = Callable[[Value, Any], None]
_SUMS = (What.ACCUMULATOR, What.REDUCED, What.PART)
OnLoss = Callable[[int, Tensor, int], None]


class Device:
    """Executes load, forward, backward, norm, step and drop of one device; the engine hands it the store of its values."""

    def __init__(
        self,
        captured: Captured,
        plan: Plan,
        program: Program,
        number: int,
        device: torch.device | str = "cpu",
        on_loss: OnLoss | None = None,
        memory: MemoryManager | None = None,
        lane: Callable[[str], AbstractContextManager[Any]] = lambda _: nullcontext(),
    ) -> None:
        """Make the device's stages.

        Arguments:
            number: which device of the program.
            device: where its tensors live.
            on_loss: called with microbatch, mean loss (a detached scalar, still on the device) and samples.
            memory: holds values to budgets; made as the plan says if none is given.
            lane: what the work of a compute lane is done in: a stream.

        Raises:
            MemoryExceeded: the weights do not fit.
        """
        self.number, self.device = number, torch.device(device)
        self.program, self.plan, self.captured = program, plan, captured
        self.stream = Stream(captured.job, plan)
        self._scale = Scale(plan, program.rule)
        self.clipping = Clipping(captured.job.clip_grad_norm, program.stages)
        self.on_loss = on_loss
        parts = split(captured, plan, number)
        way = Feature.SHARD_FULL if plan.shard == "full" else Feature.SHARD_OPTIMIZER
        for replicas in {len(part.shape.devices) for part in parts if part.shape.sharded}:
            check_sharing(captured.job, replicas, way)
        if memory is None and (program.swaps or plan.swap is not None):
            memory = MemoryManager(number, self.device, *budgets_of(plan))
        self.memory = memory
        self.swapping = None if memory is None else Swapper(memory, program.swaps)
        self._swap_sizes = sizes_of(program, plan.swap) if plan.swap is not None and plan.swap.stages else None
        self.stages: dict[int, StageRunner] = {}
        for part in parts:
            compile = plan.stages[part.number].compile
            with lane(part.shape.lane):
                runner = StageRunner(captured, part, self._sizes(part), self.device, number, compile)
            self.stages[part.number] = runner
            if self.swapping is not None:
                self.swapping.settle(part.number, runner)
        self._pieces = {
            (part.number, other): Pieces(captured, names, flowing[other], self._unlike(part, other))
            for part in parts
            for borders, flowing in (
                (part.arriving, part.arriving_gradients),
                (part.leaving, part.leaving_gradients),
            )
            for other, names in borders.items()
            if self._piece(part.number, other) < part.shape.merged
        }
        self._handlers: dict[Kind, Callable[[Instruction, Store, Publish | None], None]] = {
            Kind.LOAD: self._load,
            Kind.FORWARD: self._forward,
            Kind.BACKWARD: self._backward,
            Kind.NORM: self._norm,
            Kind.STEP: self._step,
            Kind.DROP: lambda instruction, store, publish: None,
            Kind.SWAP_OUT: self._swap,
            Kind.SWAP_IN: self._swap,
        }

    def _sizes(self, part: StagePart) -> tuple[int, ...]:
        """The numbers of samples that a stage runs at once."""
        merged = part.shape.merged
        return tuple({self.plan.samples(m, merged) for m in range(0, self.plan.microbatches, merged)})

    def _unlike(self, part: StagePart, other: int) -> tuple[int, int]:
        """Samples of a bundle, and of a piece of it for or from another stage."""
        return self.plan.samples(0, part.shape.merged), self.plan.samples(0, self._piece(part.number, other))

    def _piece(self, one: int, other: int) -> int:
        """Microbatches of a piece on the border of two stages."""
        return piece(self.program.stages, one, other)

    def start(self, position: int = 0) -> dict[Value, Any]:
        """Begin a segment at this many samples of the data; returns the values that are there before it."""
        self.stream = Stream(self.captured.job, self.plan, position)
        self._meet()
        found: dict[Value, Any] = {}
        for value in self.program.initial(self.number):
            weights = self.stages[value.stage].weights
            found[value] = weights.newest if value.what is What.WEIGHTS else weights  # a part is told by whose it is
            if self.swapping is not None:
                found[value] = self.swapping.begin(value, self.stages[value.stage])
        return found

    def end(self, store: Mapping[Value, Any]) -> None:
        """End a segment with these values, of which `tensors`, `state` and the next segment tell."""
        if self.swapping is not None:
            self.swapping.end(store)

    def execute(self, instruction: Instruction, store: Store, publish: Publish | None = None) -> None:
        """Run one instruction whose reads are all in the store: put what it writes there and remove what it frees.

        Arguments:
            publish: called with each bucket that is summed over devices, as soon as the backward has finished it.
        """
        handler = self._handlers.get(instruction.kind)
        if handler is None:
            raise ProgramError(f"device {self.number}: {instruction.name}", "on the compute lane", "compute only")
        if self.memory is not None and self._swap_sizes is not None and instruction.kind not in SWAPS:
            self.memory.make_room(self._swap_sizes.held(instruction))
        handler(instruction, store, publish)
        if instruction.kind not in SWAPS:
            store.update((value, None) for value in instruction.writes if value.what is What.MARK)
            self.made(instruction, store)
            self.free(instruction, store)

    def made(self, instruction: Instruction, store: Store) -> None:
        """An instruction has made what it writes on this device."""
        if self.swapping is not None:
            self.swapping.written(instruction, store)

    def came(self, value: Value, thing: Any) -> Any:
        """What a transfer has brought, as it is to be in the store."""
        return thing if self.swapping is None else self.swapping.came(value, thing)

    def carried(self, thing: Any) -> Any:
        """What of a value goes into a transfer."""
        return self.memory.carried(thing) if self.memory is not None and isinstance(thing, HostCopy) else thing

    def sent(self, value: Value) -> None:
        """A message is over: a copy on the host that it was made of is not needed any more."""
        if self.memory is not None and value.on_host:
            self.memory.freed(value)

    def gave(self, value: Value) -> None:
        """A value was handed to a transfer, and is not in the store any more."""
        if self.memory is not None and not value.on_host:  # which is there until it is sent
            self.memory.left(value)

    def free(self, instruction: Instruction, store: Store) -> None:
        """Remove what an instruction frees, and hand its memory on where nobody inherited it (rule 5).

        Where values are held to a budget no memory is kept for later ones.
        """
        if self.swapping is not None:
            self.swapping.freed(instruction)
            for value in instruction.frees:
                del store[value]
            return
        inherited = {heir_of(instruction, written) for written in instruction.writes}
        for value in instruction.frees:
            found = store.pop(value)
            if value in inherited:
                continue
            if value.what is What.WEIGHTS:
                self.stages[value.stage].weights.release(found)
            elif value.what is What.GATHERED:
                self.stages[value.stage].weights.dropped(value)
            elif value.what in (What.ACCUMULATOR, What.REDUCED, What.PART, What.LENT):
                self.stages[value.stage].weights.buckets.recycle(found, elsewhere=value.what is What.LENT)

    # -- the kinds

    def _load(self, instruction: Instruction, store: Store, publish: Publish | None) -> None:
        part = self.stages[instruction.stage].part
        batch = self.stream.batch(instruction.index, part.shape.merged)
        own = self.swapping is not None  # memory that others look into cannot be emptied
        for value in instruction.writes:
            store[value] = {name: self._brought(batch[key], own) for name, key in part.batch}

    def _brought(self, tensor: Tensor, own: bool) -> Tensor:
        if has_streams(self.device) and tensor.device.type == "cpu":
            # Of memory that is not page-locked a copy would wait for all that compute has put into its stream.
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device, copy=own)

    def _forward(self, instruction: Instruction, store: Store, publish: Publish | None) -> None:
        microbatch, runner = instruction.index, self.stages[instruction.stage]
        part = runner.part
        stashes = any(value.what is What.STASH for value in instruction.writes)
        stash, slot, values = Stash(), None, {}
        for value in instruction.reads:
            if value.what in (What.WEIGHTS, What.GATHERED):
                slot = store[value]
            elif value.what is What.INPUT:
                values.update(store[value])
        for source, border in self._come(instruction, store, What.ACTIVATION):
            flowing = part.arriving_gradients[source]
            for name, tensor in zip(part.arriving[source], border, strict=True):
                if stashes and name in flowing:
                    tensor = stash.leaves[name] = tensor.detach().requires_grad_()
                values[name] = tensor
        if slot is None:
            raise InternalError(f"{instruction.name} reads no weights")
        samples = self.stream.samples(microbatch, part.shape.merged)
        seed_of = self.stream.seed_of(microbatch)
        watching: AbstractContextManager[None] = nullcontext()
        if self.swapping is not None and stashes:
            watching = stash.watching((*slot.data, *runner.fixed(), *values.values()))
        with torch.set_grad_enabled(stashes), watching:
            made = runner.run(samples, slot, values, seed_of, instruction.again)
        if part.makes_loss:
            loss = made[self.captured.loss_tensor]
            if stashes and loss.requires_grad:
                stash.loss = get_gradient_edge(loss)
            if self.on_loss is not None and not instruction.again:
                # The memory of the loss may be swapped out with the stash before somebody looks.
                own = loss.detach() if self.swapping is None else loss.detach().clone()
                self.on_loss(microbatch, own, samples)
        if stashes:
            for names in part.leaving_gradients.values():
                stash.edges.update({n: get_gradient_edge(made[n]) for n in names if made[n].requires_grad})
        for value in instruction.writes:
            if value.what is What.STASH:
                store[value] = stash
            elif value.what is What.ENDED:
                store[value] = None
        for target, pieces in _by_stage(instruction.stage, instruction.writes, What.ACTIVATION).items():
            border = tuple(made[name].detach() for name in part.leaving[target])
            self._hand_on(instruction, store, target, pieces, border)

    def _backward(self, instruction: Instruction, store: Store, publish: Publish | None) -> None:
        microbatch, runner = instruction.index, self.stages[instruction.stage]
        part, weights = runner.part, runner.weights
        roots: list[GradientEdge] = []
        gradients: list[Tensor] = []
        sums: list[Bucket] = []
        stash, slot = Stash(), None
        for value in instruction.reads:
            if value.what in (What.WEIGHTS, What.GATHERED):
                slot = store[value]
            elif value.what is What.STASH:
                stash = store[value]
            elif value.what is What.ACCUMULATOR:
                sums.append(store[value])
        for target, border in self._come(instruction, store, What.GRADIENT):
            for name, gradient in zip(part.leaving_gradients[target], border, strict=True):
                if name in stash.edges:
                    roots.append(stash.edges[name])
                    gradients.append(gradient)
        if slot is None:
            raise InternalError(f"{instruction.name} reads no weights")
        if stash.loss is not None:
            roots.append(stash.loss)
            meta = stash.loss.node._input_metadata[stash.loss.output_nr]
            scale = self._scale.loss(microbatch, part.shape.merged)
            gradients.append(torch.full((), scale, dtype=meta.dtype, device=self.device))  # a kernel, not a copy
        accumulators = {v.part: v for v in instruction.writes if v.what is What.ACCUMULATOR}
        ready = None
        if publish is not None:
            ready = _publisher(publish, accumulators)
        # A slot that `naive` has updated since the forward is the newest one: gradients arrive at the same leaves.
        weights.gradients.begin(slot, sums, ready)
        if roots:
            torch.autograd.backward(roots, gradients)
        for bucket in weights.gradients.end(slot):
            store[accumulators[bucket.number]] = bucket
        store.update((value, None) for value in instruction.writes if value.what is What.ENDED)
        for source, pieces in _by_stage(instruction.stage, instruction.writes, What.GRADIENT).items():
            leaves = [stash.leaves[name] for name in part.arriving_gradients[source]]
            border = tuple(torch.zeros_like(x) if x.grad is None else x.grad for x in leaves)
            self._hand_on(instruction, store, source, pieces, border)

    def _come(self, instruction: Instruction, store: Store, what: What) -> Iterator[tuple[int, Border]]:
        """What a bundle reads of each other stage, in one: pieces become views of it."""
        for other, values in _by_stage(instruction.stage, instruction.reads, what).items():
            if len(values) == 1:
                yield other, store[values[0]]
                continue
            pieces = self._pieces[instruction.stage, other]
            whole, views = pieces.joined(what, [store[value] for value in values])
            store.update(zip(values, views, strict=True))
            yield other, whole

    def _hand_on(self, instruction: Instruction, store: Store, other: int, values: list[Value], whole: Border) -> None:
        """What a bundle makes for another stage, in as many pieces as it is to have."""
        found = [whole]
        if len(values) > 1:
            each = self._piece(instruction.stage, other)
            samples = [self.plan.samples(value.index, each) for value in values]
            found = self._pieces[instruction.stage, other].split(values[0].what, whole, samples)
        store.update(zip(values, found, strict=True))

    def _norm(self, instruction: Instruction, store: Store, publish: Publish | None) -> None:
        gradients = (
            (stage, bucket.number, name, gradient)
            for stage in sorted({value.stage for value in instruction.reads})
            for bucket in self._gradients(stage, instruction, store, once=True)
            for name, gradient in self.stages[stage].weights.buckets.named(bucket)
        )
        squares = self.clipping.squares(gradients, self.device)
        store.update(dict.fromkeys(instruction.writes, squares))

    def _gradients(self, stage: int, instruction: Instruction, store: Store, once: bool = False) -> Iterator[Bucket]:
        """The gradients of a stage among what an instruction reads, bucket by bucket; those that several stages of the device have of
        weights that they share are added up, in the order of the stages, in memory of their own.

        Arguments:
            once: what is added up is for the first of these stages only.
        """
        found = {(v.stage, v.part): store[v] for v in instruction.reads if v.what in _SUMS}
        for s, bucket in found:
            sharing = together(self.program.stages, s, bucket)
            if s != stage or (once and sharing[0] != (s, bucket)):
                continue
            members = [found[one] for one in sharing if one in found]
            yield members[0] if len(members) == 1 else self.stages[s].weights.buckets.added(bucket, members)

    def _step(self, instruction: Instruction, store: Store, publish: Publish | None) -> None:
        stage, update = instruction.stage, instruction.index
        weights = self.stages[stage].weights
        what = What.SHARD if weights.gathers else What.WEIGHTS
        old = next(value for value in instruction.reads if value.what is what)
        buckets = list(self._gradients(stage, instruction, store))
        factor: float | Tensor = self._scale.gradient(stage, update)
        for value in instruction.reads:
            if value.what in (What.SQUARES, What.NORM):
                factor = self.clipping.factor(store[value])  # of a synchronous program: the scale is one
        newest = weights.newest if weights.gathers else store[old]
        lends = [value for value in instruction.writes if value.what is What.LENT]
        used = buckets
        if lends:
            lent = [store[value] for value in instruction.reads if value.what is What.LENT]
            used = averaged(buckets, lent) if lent else alone(buckets, weights.buckets, float(factor))
            factor = self.clipping.alone(g for bucket in used for _, g in weights.buckets.named(bucket))
        slot = weights.step(newest, used, old in instruction.frees, factor)
        if lends and not lent:
            for bucket in used:
                weights.buckets.recycle(bucket)
        store.update(zip(lends, buckets, strict=False))
        for value in instruction.writes:
            if value.what is not What.LENT:
                store[value] = weights if value.what is What.OPTIMIZER or weights.gathers else slot

    def _swap(self, instruction: Instruction, store: Store, publish: Publish | None) -> None:
        if self.swapping is None:
            raise ProgramError(f"device {self.number}: {instruction.name}", "a swap", "none: the program says no swaps")
        self.swapping.swap(instruction, store)

    # -- between segments

    def _meet(self) -> None:
        """Make one model of two waves': weights, optimizer state and buffers of both become their mean."""
        if waves(self.program.rule):
            first, second = (self.stages[s] for s in sorted(self.stages))
            first.weights.meet(second.weights)
            for name, buffer in first.buffers.items():
                meet(buffer, second.buffers[name])

    def tensors(self, gathers: Mapping[int, Gather] | None = None) -> dict[str, Tensor]:
        """The newest weights by global name (not copied), of waves their mean; `gathers` as for `state`."""
        self._meet()
        found = [r.weights.whole((gathers or {}).get(s)) for s, r in sorted(self.stages.items())]
        tensors = {name: tensor for own in found for name, tensor in own.items()}
        return tensors if self.swapping is None else self.swapping.readable(tensors)

    def described(self) -> dict[str, Tensor]:
        """What the whole newest weights are, by global name, on meta: nobody else is asked for parts."""
        return {name: tensor for r in self.stages.values() for name, tensor in r.weights.described().items()}

    def buffers(self) -> dict[str, Tensor]:
        """Buffers by global name (not copied); running statistics are this device's own."""
        return {name: tensor for runner in self.stages.values() for name, tensor in runner.buffers.items()}

    @property
    def optimizer(self) -> str:
        """The name of the optimizer, such as "SGD"; empty where nothing is trained here."""
        made = (runner.weights.optimizer for runner in self.stages.values())
        return next((type(one).__name__ for one in made if one is not None), "")

    def resident(self) -> Iterator[Tensor]:
        """Every tensor that stays from instruction to instruction before the first one runs."""
        for runner in self.stages.values():
            yield from runner.resident()

    def state(self, gathers: Mapping[int, Gather] | None = None) -> dict[str, dict[str, Any]]:
        """What goes on after this segment, by global name and not copied: {"weights": {name: tensor}, "buffers": {name:
        tensor}, "optimizer": {name of a parameter: {key: tensor or number}}}.

        Arguments:
            gathers: for stages whose replicas share the step, by number: a collective call of theirs.
        """
        self._meet()
        states = [r.weights.state((gathers or {}).get(s)) for s, r in sorted(self.stages.items())]
        optimizer = {name: dict(entries) for state in states for name, entries in state.items()}
        if self.swapping is not None:
            optimizer = {name: self.swapping.readable(entries) for name, entries in optimizer.items()}
        masters = {name: entries.pop(MASTER) for name, entries in optimizer.items() if MASTER in entries}
        return {"weights": {**self.tensors(gathers), **masters}, "buffers": self.buffers(), "optimizer": optimizer}

    def load(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Take what `state` gave, here or on other devices; names that are not of this device are ignored.

        Raises:
            InputError: a weight of this device is missing.
        """
        for stage, runner in self.stages.items():
            for name in runner.weights.slots[0].leaves:
                if name not in state["weights"]:
                    raise InputError(f"state: {name}", "no such weight", "every weight of the stage")
            with nullcontext() if self.swapping is None else self.swapping.at_hand(stage, runner):
                runner.weights.load(state["weights"], state["optimizer"])
            for name, tensor in runner.buffers.items():
                if name in state["buffers"]:
                    tensor.copy_(state["buffers"][name])


def _by_stage(stage: int, values: Iterable[Value], what: What) -> dict[int, list[Value]]:
    """The activations or gradients among what an instruction of a stage reads or writes, by the stage at the other end."""
    found: dict[int, list[Value]] = {}
    for value in sorted(value for value in values if value.what is what):
        found.setdefault(value.stage if value.part == stage else value.part, []).append(value)
    return found


def _publisher(publish: Publish, accumulators: Mapping[int, Value]) -> Callable[[Bucket], None]:
    return lambda bucket: publish(accumulators[bucket.number], bucket)
