"""Optimizer steps of a device, and norms of gradients.

Gradients are already summed over microbatches and devices. This file adds gradients of weights that stages of one
device share, and gradients that waves lend each other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite

from torch import Tensor

from hocket.program.instruction import Instruction, Kind, ValueKind
from hocket.program.order import together
from hocket.program.program import Program
from hocket.runtime.nan_guard.guard import Guard
from hocket.runtime.stage.stage_runner import StageRunner
from hocket.runtime.swapping.swapper import Store
from hocket.runtime.update.averaging import alone, averaged
from hocket.runtime.update.buckets import Bucket
from hocket.runtime.update.clipping import Clipping, Squares
from hocket.runtime.update.loss.factors import LossFactors
from hocket.runtime.update.loss.scaler import LossScaler
from hocket.runtime.update.loss.weights import LossWeights

_NORMS = (ValueKind.SQUARES, ValueKind.NORM)
_SUMS = (ValueKind.ACCUMULATOR, ValueKind.REDUCED, ValueKind.PART)


class OptimizerSteps:
    """Norms and optimizer steps of one device.

    Attributes:
        on_norm: called with the training step (from 0) and the norm of all gradients, once for each update with a norm.
    """

    def __init__(
        self,
        program: Program,
        stages: Mapping[int, StageRunner],
        factors: LossFactors,
        clipping: Clipping,
        weights: LossWeights,
        guard: Guard,
    ) -> None:
        """Prepare the optimizer steps of one device's stages.

        Arguments:
            weights: loss weights of the microbatches that are computed here, and the data of the segment.
            guard: decides which steps are skipped.
        """
        self._program, self._stages, self._factors, self._clipping = program, stages, factors, clipping
        self._weights, self._guard, self._scaler = weights, guard, factors.scaler
        self.on_norm: Callable[[int, float], None] | None = None
        self._told = -1  # the newest training step with a reported norm

    @property
    def has_norm(self) -> bool:
        """True if each update of this device reads the norm of all gradients."""
        return self._clipping.sums_norm and any(
            value.what in _NORMS
            for part in (self._program.prologue, self._program.period, self._program.epilogue)
            for lane in part.values()
            for instruction in lane
            if instruction.kind is Kind.STEP and instruction.stage in self._stages
            for value in instruction.reads
        )

    def norm(self, instruction: Instruction, store: Store) -> None:
        """Write this device's share of the squared gradient norm and of loss weights."""
        device = self._stages[instruction.stage].device
        gradients = (
            (stage, bucket.number, name, gradient)
            for stage in sorted({value.stage for value in instruction.reads})
            for bucket in self._gradients(stage, instruction, store, once=True)
            for name, gradient in self._stages[stage].weights.buckets.named(bucket)
        )
        squares = self._clipping.squares(gradients, device, self._weights.take(instruction.index))
        store.update(dict.fromkeys(instruction.writes, squares))

    def step(self, instruction: Instruction, store: Store) -> None:
        """Write the next version of a stage's weights and optimizer state."""
        stage, update = instruction.stage, instruction.index
        weights = self._stages[stage].weights
        what = ValueKind.SHARD if weights.gathers else ValueKind.WEIGHTS
        old = next(value for value in instruction.reads if value.what is what)
        buckets = list(self._gradients(stage, instruction, store))
        factor: float | Tensor = self._factors.gradient(stage, update)
        squares: Squares | None = None
        scale = 1.0 if self._scaler is None else self._scaler.of(self._first_microbatch(stage, update))
        for value in instruction.reads:
            if value.what in _NORMS:
                squares = store[value]
                # The program is synchronous, so the factor of `LossFactors` is one.
                factor = self._clipping.factor(squares, scale)
        newest = weights.newest if weights.gathers else store[old]
        lends = [value for value in instruction.writes if value.what is ValueKind.LENT]
        used = buckets
        if lends:
            lent = [store[value] for value in instruction.reads if value.what is ValueKind.LENT]
            used = averaged(buckets, lent) if lent else alone(buckets, weights.buckets, float(factor))
            factor = self._clipping.alone(g for bucket in used for _, g in weights.buckets.named(bucket))
        if self._program.stages[stage].clips_alone:
            buckets_of = weights.buckets
            own = (named for bucket in used for named in buckets_of.named(bucket))
            factor = self._clipping.by_stage(own, factor, self._stages[stage].device)
        leave_out = not self._lets(stage, update, used, squares)
        training_step = self._training_step(stage, update)
        if self.on_norm is not None and squares is not None and training_step > self._told:
            self._told = training_step
            self.on_norm(training_step, self._clipping.norm(squares, scale))
        slot = weights.step(newest, used, old in instruction.frees, factor, training_step, leave_out)
        if lends and not lent:
            for bucket in used:
                weights.buckets.recycle(bucket)
        store.update(zip(lends, buckets, strict=False))
        for value in instruction.writes:
            if value.what is not ValueKind.LENT:
                store[value] = weights if value.what is ValueKind.OPTIMIZER or weights.gathers else slot

    def _training_step(self, stage: int, update: int) -> int:
        """Return the training step that contains an update's first microbatch."""
        return self._weights.stream.step(self._first_microbatch(stage, update))

    def _first_microbatch(self, stage: int, update: int) -> int:
        """Return the first microbatch of an update."""
        return self._program.rule.microbatches(stage, update).start

    def _lets(self, stage: int, update: int, buckets: Sequence[Bucket], squares: Squares | None) -> bool:
        """Return True if a step may use these gradients.

        The loss scaler, if any, leaves out updates with gradients that overflow. Otherwise the nan guard looks for nan
        and infinity. With on_nan "skip", the buffers of the stage's modules (such as running statistics) are copied
        after each update. An update that the guard skips restores the copies.
        """
        runner, first = self._stages[stage], self._first_microbatch(stage, update)
        total = squares.flats[0].reshape(-1)[0] if squares is not None and self._clipping.sums_norm else None
        finite = True
        if self._scaler is not None and total is not None:
            finite = isfinite(float(total))
            if self._overflows(self._scaler, first, finite):
                if self._guard.policy == "skip":
                    runner.keep_buffers()
                return False
        lets = finite & self._guard.lets(
            first,
            [tensor for bucket in buckets for tensor in bucket.parts or bucket.gradients if tensor is not None],
            lambda: [named for bucket in buckets for named in runner.weights.buckets.named(bucket)],
            total,
        )
        if self._guard.policy == "skip":
            runner.keep_buffers() if lets else runner.restore_buffers()
        return lets

    def _overflows(self, scaler: LossScaler, first: int, finite: bool) -> bool:
        """Return True if the loss scaler leaves an update out; tell the user once.

        Arguments:
            first: first microbatch of the update.
        """
        skipped = scaler.skipped
        overflows = scaler.overflows(first, finite)
        if scaler.skipped > skipped:
            self._guard.overflowed(first, scaler.of(first), scaler.state.scale)
        return overflows

    def _gradients(self, stage: int, instruction: Instruction, store: Store, once: bool = False) -> Iterator[Bucket]:
        """Yield the gradients of a stage that an instruction reads, by bucket.

        Gradients of weights shared by several stages of the device are added in stage order, in new memory.

        Arguments:
            once: True to yield gradients of shared weights only for the first of these stages.
        """
        found = {(v.stage, v.part): store[v] for v in instruction.reads if v.what in _SUMS}
        for s, bucket in found:
            sharing = together(self._program.stages, s, bucket)
            if s != stage or (once and sharing[0] != (s, bucket)):
                continue
            members = [found[one] for one in sharing if one in found]
            yield members[0] if len(members) == 1 else self._stages[s].weights.buckets.added(bucket, members)
