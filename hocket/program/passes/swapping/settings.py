"""Settings of swapping in a plan, with the bytes on which swaps are based.

Rules of this file: plain figures of stages, so that a plan compiles to the same program everywhere, without a profile.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from hocket.errors import InputError, nearest
from hocket.program.instruction import Instruction, Kind, Value, ValueKind
from hocket.program.memory_bound.footprint import Sizes
from hocket.program.program import Program
from hocket.util.units import show_bytes, show_count

POLICIES = ("task", "next_use", "lru")
"""Policies that choose the values to evict when others need a device's memory.

- task: all values that no later operation of the same task uses; between tasks, all values. This is the assumption of
  Harmony (HotOS 2021), section 3.
- next_use: the value with the latest next use (Belady 1966). The order of a program is known.
- lru: the least recently used value. It is written to the host even if it is unchanged. This is virtual memory of each
  device alone.
"""


@dataclass(frozen=True)
class StageSwap:
    """Bytes of one stage's values, and of its instructions' working memory.

    Each figure is the maximum over the stage's microbatches. A target of a stage is a stage that gets activations from
    it.

    Attributes:
        weights_bytes: weights of the stage.
        optimizer_bytes: optimizer state of the stage.
        stash_bytes: tensors that autograd saves in the forward pass of one microbatch.
        input_bytes: tensors of the data that the stage reads for one microbatch.
        gradients_bytes: weight gradients of each gradient bucket.
        activations_bytes: activations of one microbatch, for each target.
        activation_gradients_bytes: gradients of these activations, for each target.
        load_bytes: memory that loading a microbatch needs while it runs.
        forward_bytes: memory that a forward pass needs while it runs, with its results.
        backward_bytes: memory that a backward pass needs while it runs, with its results.
        norm_bytes: memory that the gradient norm needs while it is computed.
        step_bytes: memory that an optimizer step needs while it runs.
        buffers_bytes: buffers and constants, which are never swapped.
    """

    weights_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    gradients_bytes: tuple[float, ...] = ()
    stash_bytes: float = 0.0
    input_bytes: float = 0.0
    activations_bytes: tuple[float, ...] = ()
    activation_gradients_bytes: tuple[float, ...] = ()
    load_bytes: float = 0.0
    forward_bytes: float = 0.0
    backward_bytes: float = 0.0
    norm_bytes: float = 0.0
    step_bytes: float = 0.0
    buffers_bytes: float = 0.0

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            for amount in value if isinstance(value, tuple) else (value,):
                if not 0 <= amount < float("inf"):
                    raise InputError(key, str(amount), "bytes >= 0")


@dataclass(frozen=True)
class Swapping:
    """Settings of swapping in a plan.

    Attributes:
        policy: which values leave the device to make room: "task" (all values that no later operation of the same task
            uses), "next_use" (the value with the latest next use) or "lru" (the least recently used value).
        device_bytes: maximum bytes of values on a device; a list has one maximum for each device. `hocket check` proves
            that the program keeps to it. None: no limit, for the policy "task" only.
        host_bytes: maximum bytes of one device's values in host memory, which `hocket check` proves as well. None: no
            limit in the plan; the cluster's `host_memory_bytes` still holds.
        prefetch: number of operations (forward pass, backward pass, update) ahead of time for which values are swapped
            in during computation. 0: a value is swapped in when it is needed, as by a page fault.
        writes_clean: True to write an evicted value to the host even if the host has an equal copy; the policy "lru"
            always does this.
        stages: bytes of each stage's values, from which swaps are chosen; () if the policy "task" needs none.
    """

    policy: str
    device_bytes: float | tuple[float, ...] | None = None
    host_bytes: float | None = None
    prefetch: int = 0
    writes_clean: bool = False
    stages: tuple[StageSwap, ...] = field(default=())

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise InputError(
                "policy", repr(self.policy), f"one of {', '.join(POLICIES)}", nearest(self.policy, POLICIES)
            )
        for key in ("device_bytes", "host_bytes"):
            said = getattr(self, key)
            for value in said if isinstance(said, tuple) else (said,):
                if value is not None and not value > 0:
                    raise InputError(key, str(value), "> 0, or leave the key out")
        if self.device_bytes is None and self.policy != "task":
            raise InputError("device_bytes", "nothing", f"a limit, which the policy {self.policy} needs")
        if self.prefetch < 0:
            raise InputError("prefetch", str(self.prefetch), ">= 0 operations")

    def describe(self) -> str:
        """Description of these settings in one line."""
        limits = self.device_bytes if isinstance(self.device_bytes, tuple) else (self.device_bytes,)
        each = ", ".join("any bytes" if limit is None else show_bytes(limit) for limit in limits)
        ahead = f", {show_count(self.prefetch, 'operation')} ahead" if self.prefetch else ""
        of = "the devices" if len(limits) > 1 else "each device"
        return f"swaps to the host: policy {self.policy}, within {each} of {of}{ahead}"

    def budget_bytes(self, device: int) -> float | None:
        """Maximum bytes of one device; None without a limit."""
        return self.device_bytes[device] if isinstance(self.device_bytes, tuple) else self.device_bytes


# Attributes of StageSwap: for instructions of each kind while they run, and for values of each kind.
_HELD = {
    Kind.LOAD: "load_bytes", Kind.FORWARD: "forward_bytes", Kind.BACKWARD: "backward_bytes", Kind.NORM: "norm_bytes",
    Kind.STEP: "step_bytes",
}  # fmt: skip
_PLAIN = {
    ValueKind.WEIGHTS: "weights_bytes", ValueKind.OPTIMIZER: "optimizer_bytes", ValueKind.STASH: "stash_bytes", ValueKind.INPUT: "input_bytes",
    ValueKind.SQUARES: "norm_bytes", ValueKind.NORM: "norm_bytes",
}  # fmt: skip


@dataclass(frozen=True)
class StageSizes:
    """Sizes for memory_bound/footprint.py, from the figures in the plan.

    Attributes:
        stages: figures of each stage.
        targets: for each stage, its target stages.
        hosted: for each stage, its devices.
    """

    stages: tuple[StageSwap, ...]
    targets: tuple[tuple[int, ...], ...]
    hosted: tuple[tuple[int, ...], ...]  # by stage, its devices

    def value(self, value: Value, device: int) -> float:
        """Bytes of a value, equal on the device and on its host."""
        stage = self.stages[value.stage]
        if plain := _PLAIN.get(value.what):
            plain_bytes: float = getattr(stage, plain)
            return plain_bytes
        match value.what:
            case ValueKind.ACCUMULATOR | ValueKind.REDUCED:
                return stage.gradients_bytes[value.part]
            case ValueKind.ACTIVATION:
                return stage.activations_bytes[self.targets[value.stage].index(value.part)]
            case ValueKind.GRADIENT:
                return stage.activation_gradients_bytes[self.targets[value.stage].index(value.part)]
        return 0.0

    def held(self, instruction: Instruction) -> float:
        """Maximum bytes that an instruction adds to device memory while it runs."""
        if held := _HELD.get(instruction.kind):
            held_bytes: float = getattr(self.stages[instruction.stage], held)
            return held_bytes
        new = (v for v in instruction.writes if not v.on_host)
        return sum(self.value(v, instruction.device) for v in new)

    def pooled(self, value: Value) -> bool:
        """False: swapped values return their memory."""
        return False

    def besides(self, device: int) -> float:
        """Bytes of the buffers of all stages on a device."""
        return sum(
            stage.buffers_bytes for stage, devices in zip(self.stages, self.hosted, strict=True) if device in devices
        )


def stages_of(program: Program, sizes: Sizes) -> tuple[StageSwap, ...]:
    """Figures of every stage of a program without swaps, for a plan.

    Each figure is the maximum over values and devices.
    """
    plain: list[dict[str, float]] = [{} for _ in program.stages]
    gradients = [[0.0] * stage.buckets for stage in program.stages]
    ahead, back = ([[0.0] * len(stage.targets) for stage in program.stages] for _ in range(2))

    def note(stage: int, key: str, amount: float) -> None:
        plain[stage][key] = max(plain[stage].get(key, 0.0), amount)

    for device in program.devices:
        note(
            min(s for s, stage in enumerate(program.stages) if device in stage.devices),
            "buffers_bytes",
            sizes.besides(device),
        )
    for _, i in program.instructions():
        if i.kind in _HELD:
            note(i.stage, _HELD[i.kind], sizes.held(i))
        for value in (*i.reads, *i.writes):
            amount, s = sizes.value(value, i.device), value.stage
            if value.what in _PLAIN:
                note(s, _PLAIN[value.what], amount)
                continue
            if value.what in (ValueKind.ACCUMULATOR, ValueKind.REDUCED):
                row, at = gradients[s], value.part
            else:
                row, at = (
                    (ahead if value.what is ValueKind.ACTIVATION else back)[s],
                    program.stages[s].targets.index(value.part),
                )
            row[at] = max(row[at], amount)
    return tuple(
        StageSwap(
            **figures,
            gradients_bytes=tuple(gradients[s]),
            activations_bytes=tuple(ahead[s]),
            activation_gradients_bytes=tuple(back[s]),
        )
        for s, figures in enumerate(plain)
    )
