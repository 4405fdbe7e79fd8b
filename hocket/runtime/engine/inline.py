"""Inline engine: all devices in one process, one instruction after the other.

It is slow and simple: the executable definition of a program's meaning. It follows exactly the rules of
hocket/program/order.py. It visits the lanes in turn and runs the first instruction of a lane if it may start.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hocket.errors import ProgramError
from hocket.program.instruction import COLLECTIVES, SWAPS, Instruction, Kind, Value, computes, receive_lane, send_lane
from hocket.program.memory_bound.receive_window import consumed, windows
from hocket.program.program import Lane, Program
from hocket.runtime.nan_guard.guard import Guard
from hocket.runtime.stage.device import Device
from hocket.runtime.stage.executable import Executable
from hocket.runtime.update.buckets import Bucket
from hocket.runtime.update.clipping import Squares
from hocket.runtime.update.sharding import Gather, made_by, over
from hocket.runtime.update.slots import WeightSlot


@dataclass
class Result:
    """Losses and final state of one run of the inline engine.

    Attributes:
        losses: (microbatch, loss, weight in the mean of the batch), sorted by microbatch. The weight is the number of
            samples, unless the job defines another.
        weights: weights by device and global name.
        position: number of samples trained on up to the end of the run.
        devices: devices with their optimizers, to continue from.
    """

    losses: list[tuple[int, float, float]]
    weights: dict[int, dict[str, Tensor]]
    position: int
    devices: dict[int, Device] = field(repr=False)


def run_inline(
    executable: Executable,
    repeats: int,
    position: int = 0,
    devices: dict[int, Device] | None = None,
    guards: Mapping[int, Guard] | None = None,
) -> Result:
    """Run one segment of a program, for all devices, in this process.

    A segment is the prologue, a number of periods, and the epilogue.

    Arguments:
        repeats: number of periods of this segment.
        position: number of samples trained on in earlier segments, since the start of training.
        devices: devices of an earlier result, to continue from their weights; by default new devices are created.
        guards: nan guards of new devices, by device number.

    Raises:
        ProgramError: no instruction can start (the error names what each lane waits for), or a value is written twice
            or freed before it is present, or values are left or missing at the end.
    """
    losses: list[tuple[int, float, float]] = []

    def on_loss(device: Device, microbatch: int, loss: Tensor, samples: int, weight: float) -> None:
        losses.append((microbatch, float(loss), weight))
        device.guard.loss(microbatch, float(loss), samples, weight)

    program = executable.program
    if devices is None:
        devices = {d: Device(executable, d, guard=(guards or {}).get(d)) for d in program.devices}
    for device in devices.values():
        device.microbatches.on_loss = partial(on_loss, device)
    interpreter = Interpreter(program, devices, repeats, position)
    interpreter.run()
    stream = next(iter(devices.values())).stream
    end = stream.position(program.microbatches(repeats))
    weights = {d: device.model.tensors(_gathers(devices, program, d)) for d, device in devices.items()}
    return Result(sorted(losses), weights, end, devices)


def _gathers(devices: Mapping[int, Device], program: Program, device: int) -> dict[int, Gather]:
    """Return an all-gather for each ZeRO-3 stage of a device, by stage.

    It takes this device's shard of a flat tensor and returns the shards of all replicas.
    """

    def gather(stage: int, part: Tensor) -> list[Tensor]:
        own = devices[device].stages[stage].weights.newest.parts
        number = next(k for k, each in enumerate(own) if each is part)
        replicas = sorted(program.stages[stage].devices)
        return [devices[other].stages[stage].weights.newest.parts[number] for other in replicas]

    return {s: partial(gather, s) for s, r in devices[device].stages.items() if r.weights.gathers}


class Interpreter:
    """Interprets the lanes of all devices by the rules of hocket/program/order.py.

    Attributes:
        lanes: instructions of each lane, in order.
        next: index of the next instruction of each lane.
        stores: present values of each device.
        room: number of messages that each lane with a receive window may still post.
    """

    def __init__(self, program: Program, devices: dict[int, Device], repeats: int, position: int) -> None:
        self.program, self.devices, self.repeats = program, devices, repeats
        self.lanes = program.unrolled(repeats)
        self.next: dict[Lane, int] = dict.fromkeys(self.lanes, 0)
        self.stores: dict[int, dict[Value, Any]] = {d: device.start(position) for d, device in devices.items()}
        self.room = windows(program)

    def run(self) -> None:
        """Run all lanes to their ends.

        Raises:
            ProgramError: no instruction can start, a value is written twice or freed before it is present, or values
                are left or missing at the end.
        """
        while any(self._head(lane) for lane in self.lanes):
            moved = False
            for lane in self.lanes:
                head = self._head(lane)
                if head is not None and self._start(lane, head):
                    moved = True
            if not moved:
                raise self._deadlock()
        for device, store in self.stores.items():
            odd = set(store) ^ set(self.program.final(device, self.repeats))
            if odd:
                found = f"{', '.join(map(str, sorted(odd)))} left or missing"
                expected = "the newest weights and optimizer state of the device's stages, and no other value"
                raise ProgramError(f"device {device}: at the end of the program", found, expected)
            self.devices[device].end(store)

    def _head(self, lane: Lane) -> Instruction | None:
        instructions, position = self.lanes.get(lane, ()), self.next.get(lane, 0)
        return instructions[position] if position < len(instructions) else None

    def _missing(self, instruction: Instruction) -> list[Value]:
        store = self.stores[instruction.device]
        return [value for value in instruction.reads if value not in store]

    def _start(self, lane: Lane, instruction: Instruction) -> bool:
        """Run an instruction if it may start; True if it ran (order.py, rule 1).

        Transfers run together with their counterparts on other devices (order.py, rules 3 and 4).
        """
        if self._missing(instruction):
            return False
        if computes(lane[1]) or instruction.kind in SWAPS or instruction.kind is Kind.LOAD:
            self._written(instruction)
            self.devices[instruction.device].execute(instruction, self.stores[instruction.device])
            self.next[lane] += 1
            for way, _ in consumed(self.program, instruction):
                self.room[way] += 1
            return True
        if instruction.kind is Kind.SEND:
            return self._send(lane, instruction)
        if instruction.kind in COLLECTIVES:
            return self._collective(lane, instruction)
        return False  # a receive advances with its send

    def _send(self, lane: Lane, send: Instruction) -> bool:
        there = (send.peer, receive_lane(send.device))
        receive = self._head(there)
        if receive is None or lane[1] != send_lane(send.peer) or not self.room[there]:
            return False
        if receive.kind is not Kind.RECEIVE or receive.writes != send.reads or receive.peer != send.device:
            place, found = f"device {send.peer}: {receive.name}", f"it meets {send.name} of device {send.device}"
            raise ProgramError(place, found, "the send of the values that it receives")
        self._written(receive)
        source, target = self.stores[send.device], self.stores[send.peer]
        for value in send.reads:
            target[value] = self._brought(send.peer, value, self.devices[send.device].carried(source[value]))
        self._free(send)
        self.room[there] -= 1
        self.next[lane] += 1
        self.next[there] += 1
        return True

    def _brought(self, device: int, value: Value, thing: Any) -> Any:
        """Return a value as a device receives it; copied if the device swaps."""
        if self.devices[device].swapping is not None and not value.on_host:
            thing = tuple(tensor.clone() for tensor in thing)
        return self.devices[device].came(value, thing)

    def _collective(self, lane: Lane, instruction: Instruction) -> bool:
        heads = []
        for device in instruction.group:
            head = self._head((device, lane[1]))
            if head is None or head.kind is not instruction.kind or self._missing(head):
                return False
            heads.append(head)
        if any(not self.room[head.device, lane[1]] for head in heads if (head.device, lane[1]) in self.room):
            return False
        parts = [made_by(head, self.stores[head.device][head.reads[0]]) for head in heads]
        for head, part in zip(heads, parts, strict=True):
            if head.index != instruction.index or [f.shape for f in part.flats] != [f.shape for f in parts[0].flats]:
                other = f"{instruction.name} on device {instruction.device}"
                raise ProgramError(
                    f"device {head.device}: {head.name}", f"it meets {other}", "the same update and bucket"
                )
        _COLLECT[instruction.kind](parts)
        for head, part in zip(heads, parts, strict=True):
            self._written(head)
            if (head.device, lane[1]) in self.room:
                self.room[head.device, lane[1]] -= 1
            over(head, part)
            self.stores[head.device][head.writes[0]] = part
            self.devices[head.device].made(head, self.stores[head.device])
            self._free(head)
            self.next[(head.device, lane[1])] += 1
        return True

    def _written(self, instruction: Instruction) -> None:
        store = self.stores[instruction.device]
        place = f"device {instruction.device}: {instruction.name}"
        for value in instruction.writes:
            if value in store:
                raise ProgramError(place, f"writes {value}, which exists already", "a value that does not exist yet")
        for value in instruction.frees:
            if value not in store:
                raise ProgramError(place, f"frees {value}, which does not exist", "an existing value")

    def _free(self, instruction: Instruction) -> None:
        self.devices[instruction.device].free(instruction, self.stores[instruction.device])

    def _deadlock(self) -> ProgramError:
        waiting = []
        for lane in self.lanes:
            head = self._head(lane)
            if head is not None:
                missing = self._missing(head)
                why = f"waits for {', '.join(map(str, missing))}" if missing else f"waits for device {_partners(head)}"
                waiting.append(f"device {lane[0]}, {lane[1]}: {head.name} {why}")
        return ProgramError(
            waiting[0].split(":")[0], "deadlock: " + "; ".join(waiting), "an instruction that can start"
        )


def _partners(instruction: Instruction) -> str:
    return str(instruction.peer) if instruction.peer >= 0 else ", ".join(str(d) for d in instruction.group)


def add_up(parts: Sequence[Bucket | Squares]) -> None:
    """All-reduce: set each flat tensor of every device to the sum over the devices.

    The summands are added in the order of the devices.

    Arguments:
        parts: the bucket, or the sum of squares, of each device.
    """
    with torch.no_grad():
        for flats in zip(*(part.flats for part in parts), strict=True):
            total = flats[0].clone()
            for flat in flats[1:]:
                total += flat.to(total.device)
            for flat in flats:
                flat.copy_(total)


def scatter_sums(buckets: Sequence[Bucket]) -> None:
    """Reduce-scatter: set each device's shard to its slice of the sum over devices.

    The summands are added in the order of the devices.

    Arguments:
        buckets: the bucket of each device; `parts` are the shards of `flats`.
    """
    with torch.no_grad():
        for flats, parts in _side_by_side(buckets):
            total = flats[0].clone()
            for flat in flats[1:]:
                total += flat.to(total.device)
            for part, own in zip(parts, total.chunk(len(parts)), strict=True):
                part.copy_(own)


def gather_parts(slots: Sequence[WeightSlot]) -> None:
    """All-gather: fill each device's flat tensors with the shards of all devices.

    The shards are in the order of the devices.

    Arguments:
        slots: the weight slot of each device; `parts` are the shards of `flats`.
    """
    with torch.no_grad():
        for flats, parts in _side_by_side(slots):
            whole = torch.cat([part.to(parts[0].device) for part in parts])
            for flat in flats:
                flat.copy_(whole)


def _side_by_side(things: Sequence[Bucket | WeightSlot]) -> Iterator[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
    """Yield (flat tensor on each device, shard of each device), for each flat tensor."""
    flats, parts = (zip(*(getattr(thing, name) for thing in things), strict=True) for name in ("flats", "parts"))
    return zip(flats, parts, strict=True)


_COLLECT: dict[Kind, Callable[[Any], None]] = {
    Kind.ALL_REDUCE: add_up,
    Kind.REDUCE_SCATTER: scatter_sums,
    Kind.ALL_GATHER: gather_parts,
}
