"""CostModel: seconds and bytes of one plan's instructions on one cluster.

The simulator uses no other source of costs. Of several equal pipeline replicas (columns), it may simulate only one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from hocket.cost.background.device_share import mean_demand
from hocket.cost.buckets.contention_model import ContentionModel
from hocket.cost.compute import Columns, least_factor, ready_fractions, type_factor
from hocket.cost.contention import Use, collective_uses, compute_uses, swap_uses, transfer_uses, wave_use
from hocket.cost.memory.values import PlanMemory
from hocket.cost.transfer import TransferTime, collective, message, swap
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster
from hocket.profiling.profile import ModelProfile
from hocket.program.instruction import COLLECTIVES, SWAPS, Instruction, Kind, Value, ValueKind
from hocket.program.passes.borders import StageCut, check_cuts, ties_of

_COMPUTE = frozenset({Kind.FORWARD, Kind.BACKWARD, Kind.NORM, Kind.STEP})


@dataclass(frozen=True)
class CostModel:
    """Seconds and bytes of the instructions of one plan.

    Attributes:
        profile: costs of the layers on the profiled device type, and maybe on others.
        cluster: the cluster that the plan runs on. For a device type that the profile does not know, seconds are the
            profiled seconds times its entry in `factors`, else times the ratio of the two types' peak rates for the
            profile's data type. (The ratio is coarse: measure if it matters.)
        cuts: the stages.
        samples: samples of each microbatch of one batch. Microbatch m has samples[m % len(samples)].
        factors: by device type, its seconds per profiled second. They are used instead of seconds that the profile has
            for the type, and instead of the ratio of peak rates.
        columns: the profile's costs by microbatch size, to share among many plans; made if not given.
        swaps: True if values are swapped to the host, so that each has separate memory.
        loaders: number of processes of each worker that read its samples ahead; 0 if the worker reads them.
    """

    profile: ModelProfile
    cluster: Cluster
    cuts: tuple[StageCut, ...]
    samples: tuple[int, ...]
    factors: Mapping[str, float] = field(default_factory=dict)
    columns: Columns | None = field(default=None, repr=False, compare=False)
    swaps: bool = False
    loaders: int = 0

    def __post_init__(self) -> None:
        if not self.samples or min(self.samples) < 1:
            raise InputError("samples", str(self.samples), "at least one microbatch with at least one sample each")
        check_cuts(self.profile.layers, self.profile.tensors, self.cuts)

    @property
    def batch_size(self) -> int:
        """Samples of one batch."""
        return sum(self.samples)

    def samples_of(self, instruction: Instruction) -> int:
        """Number of samples of an instruction's microbatches.

        For an instruction without a microbatch (norm, step, collective), it is that of the first microbatch.
        """
        if instruction.counts_updates or instruction.kind in COLLECTIVES:
            return self.samples[0]
        return self.samples_from(instruction.index, self.merged_in(instruction))

    def samples_from(self, microbatch: int, merged: int = 1) -> int:
        """Number of samples of one microbatch, or of `merged` consecutive ones."""
        count = len(self.samples)
        if merged == 1:
            return self.samples[microbatch % count]
        return sum(self.samples[(microbatch + k) % count] for k in range(merged))

    def merged_in(self, instruction: Instruction) -> int:
        """Number of microbatches that an instruction runs or moves together."""
        match instruction.kind:
            case Kind.LOAD | Kind.FORWARD | Kind.BACKWARD:
                return self.cuts[instruction.stage].merged
            case Kind.SEND | Kind.RECEIVE | Kind.SWAP_IN | Kind.SWAP_OUT:
                return self.merged_of((instruction.reads or instruction.writes)[0])
        return 1

    def merged_of(self, value: Value) -> int:
        """Number of microbatches in a value."""
        if value.what in (ValueKind.ACTIVATION, ValueKind.GRADIENT):
            return self.memory.bundles.piece(value)
        return self.cuts[value.stage].merged

    @property
    def rounds(self) -> int:
        """Number of microbatches after which microbatch sizes repeat.

        This is 1 if all microbatches have the same size, else the number of microbatches in a batch.
        """
        return len(self.samples) if len(set(self.samples)) > 1 else 1

    @cached_property
    def _columns(self) -> Columns:
        return self.columns or Columns(self.profile)

    @cached_property
    def memory(self) -> PlanMemory:
        """Bytes of the plan's values and instructions."""
        return PlanMemory(self._columns, self.cuts, self.samples, self.swaps)

    @cached_property
    def _overlaps(self) -> ContentionModel:
        ties = ties_of(self.profile.layers, self.cuts)
        return ContentionModel(self.cluster, self.cuts, ties, self.memory, self.members)

    @cached_property
    def _factors(self) -> dict[str, float]:
        """Seconds on each of the plan's device types per profiled second."""
        here = self.profile.device_type
        found: dict[str, float] = {}
        for device in sorted({d for cut in self.cuts for d in cut.devices}):
            name = self.cluster.node_of(device).device_type
            if name not in found:
                given = self.factors.get(name)
                found[name] = given if given is not None else 1.0 if name == here else self._quotient(name)
        return found

    @cached_property
    def _known(self) -> dict[str, Columns]:
        """Costs on the plan's other device types that the profile knows.

        Types in `factors` are left out.
        """
        names = {self.cluster.node_of(d).device_type for cut in self.cuts for d in cut.devices} - {
            self.profile.device_type
        }
        found = {name: self._columns.on(name) for name in sorted(names - self.factors.keys())}
        return {name: columns for name, columns in found.items() if columns is not None}

    def columns_on(self, device: int) -> Columns:
        """Costs of the profile's layers on a device's type.

        They are costs on the profiled type if the profile does not know the device's type, or if `factors` has it.
        """
        return self._known.get(self.cluster.node_of(device).device_type, self._columns)

    def _quotient(self, name: str) -> float:
        if name in self._known:
            return least_factor(self._columns.profile, self._known[name].profile)
        return type_factor(self.profile.device_type, self.profile.dtype, self.cluster, name)

    def factor(self, device: int) -> float:
        """Seconds on a device per profiled second.

        If the profile has seconds for the device's type, this is the smallest ratio of all layers.

        Raises:
            InputError: the profile is for another device type, and the peak rate of one of the two is unknown.
        """
        return self._factors[self.cluster.node_of(device).device_type]

    def seconds(self, instruction: Instruction, samples: int | None = None) -> float:
        """Seconds of a load or a compute instruction alone on its device.

        - A load is work of the host: it takes the same time for every type of device. With N loaders, it takes an N-th
          of the profiled seconds: each loader reads on a core of its own, and taking a microbatch that is read, with
          its copy to the device, takes no longer than that. Without prefetch this is too much where loaders are quick
          enough: they read while the device computes.
        - A step first copies weights that are kept (runtime/update/weight_versions.py).
        - A norm has only the engine's overhead. The profiled step of a job that clips includes the norm.
        - The first backward of an update copies its gradients into flat buckets if they are summed over replicas.
        - The engine's overhead is added: its fixed seconds, and the seconds to begin sends of written values and
          receives that the instruction makes room for (program/order.py, rule 6).

        Arguments:
            samples: samples of the instruction's microbatches; by default those of its index.

        Returns:
            0 for drops, swaps and transfers.
        """
        if instruction.kind not in _COMPUTE and instruction.kind is not Kind.LOAD:
            return 0.0
        size = self.samples_of(instruction) if samples is None else samples
        if instruction.kind is Kind.LOAD:
            return self._columns.at(size).load_s / max(1, self.loaders)
        name = self.cluster.node_of(instruction.device).device_type
        factor = 1.0 if name in self._known else self._factors[name]
        columns = self.columns_on(instruction.device)
        alone = self._profiled_s(columns, instruction.kind, instruction.stage, size, self._copies(instruction))
        besides = self.cluster.instruction_s
        if self.cluster.post_s or self.cluster.sender_copies:
            besides += self._begins_s(instruction, size)
        return besides + alone * factor

    @cached_property
    def varies(self) -> bool:
        """True if the profile has the standard deviation of compute times."""
        return any((*self.profile.whole_forward_std_s, *self.profile.whole_backward_std_s))

    def variance(self, instruction: Instruction, samples: int) -> float:
        """Variance of the seconds of a forward or backward, in square seconds.

        Layers vary independently: a stage's share of the undivided model's variance equals its share of the seconds. On
        a device type with other seconds, the standard deviation scales with the seconds.

        Arguments:
            samples: samples of the instruction's microbatches.

        Returns:
            0 for all other instructions, and if the profile has no standard deviations.
        """
        if instruction.kind not in (Kind.FORWARD, Kind.BACKWARD) or not self.varies:
            return 0.0
        own = self._profiled_s(self._columns, instruction.kind, instruction.stage, samples, False)
        if own <= 0:
            return 0.0
        there = self._alone_s(instruction.kind, instruction.stage, instruction.device, samples)
        figures = self._columns.at(samples)
        column = figures.forward_s if instruction.kind is Kind.FORWARD else figures.backward_s
        deviation_s = figures.deviation_s[instruction.kind is Kind.BACKWARD]
        return deviation_s**2 * own / float(column.sum()) * (there / own) ** 2

    def turn_s(self, stage: int, device: int, samples: int) -> float:
        """Seconds of forward, backward and recomputation of one microbatch on a stage.

        The engine's overhead is included.
        """
        forward_s, again = self._alone_s(Kind.FORWARD, stage, device, samples), self.cuts[stage].recompute
        both_s = forward_s * (1 + again) + self.backward_s(stage, device, samples)
        return both_s + (2 + again) * self.cluster.instruction_s

    def backward_s(self, stage: int, device: int, samples: int) -> float:
        """Seconds of one backward of a stage alone on a device.

        The engine's overhead is not included.
        """
        return self._alone_s(Kind.BACKWARD, stage, device, samples)

    def _alone_s(self, kind: Kind, stage: int, device: int, samples: int) -> float:
        name = self.cluster.node_of(device).device_type
        seconds = self._profiled_s(self.columns_on(device), kind, stage, samples, False)
        return seconds * (1.0 if name in self._known else self._factors[name])

    def _copies(self, instruction: Instruction) -> bool:
        """True if a step copies weights, or a backward copies gradients into flat buckets."""
        if instruction.kind is Kind.STEP:
            own = (ValueKind.WEIGHTS, instruction.stage, instruction.index)
            return all(value[:3] != own for value in instruction.frees)
        if instruction.kind is Kind.BACKWARD and self.cuts[instruction.stage].replicated:
            return all(value.what is not ValueKind.ACCUMULATOR for value in instruction.frees)
        return False

    def _begins_s(self, instruction: Instruction, samples: int) -> float:
        """Seconds of a forward or backward to begin transfers, and to copy messages.

        Messages are copied by the compute lane if `Cluster.sender_copies` is true.
        """
        here = instruction.device
        if instruction.kind is Kind.BACKWARD:
            sent = [(v.stage, v) for v in instruction.writes if v.what is ValueKind.GRADIENT]
            came = [(v.part, v) for v in instruction.reads if v.what is ValueKind.GRADIENT]
        elif instruction.kind is Kind.FORWARD and not instruction.again:
            sent = [(v.part, v) for v in instruction.writes if v.what is ValueKind.ACTIVATION]
            came = [(v.stage, v) for v in instruction.reads if v.what is ValueKind.ACTIVATION]
        else:
            return 0.0
        receives = sum(self.cuts[stage].device(value.index) != here for stage, value in came)
        ends = [(self.cuts[stage].device(value.index), value) for stage, value in sent]
        away = [(target, value) for target, value in ends if target != here]
        copied_s = sum(
            self.bytes_of((value,), self.memory.bundles.samples_in(instruction, value, samples))
            / self.cluster.link_between(here, target).bandwidth_bytes_per_s
            for target, value in away
            if self.cluster.copied_between(here, target)
        )
        return self.cluster.post_s * (receives + len(away)) + copied_s

    def _profiled_s(self, columns: Columns, kind: Kind, stage: int, samples: int, copies: bool) -> float:
        """Seconds of one instruction of a stage, from the profile of a device type.

        Arguments:
            columns: costs on the device type.
            kind: FORWARD, BACKWARD, STEP or NORM.
            copies: True if a step copies the weights, or a backward copies gradients into flat buckets.
        """
        key = (columns.profile.device_type, kind, stage, samples, copies)
        if key not in self._known_s:
            layers, figures = self.cuts[stage].layers, columns.at(samples)
            if kind is Kind.NORM:
                self._known_s[key] = 0.0
            elif kind is Kind.STEP:
                self._known_s[key] = columns.step_s(layers, copies, self.memory.stages[stage].stepped)
            else:
                column = figures.forward_s if kind is Kind.FORWARD else figures.backward_s
                self._known_s[key] = float(column[list(layers)].sum()) + (columns.copy_s(layers) if copies else 0.0)
        return self._known_s[key]

    @cached_property
    def _known_s(self) -> dict[tuple[str, Kind, int, int, bool], float]:
        return {}

    @cached_property
    def _known_ready(self) -> dict[tuple[int, int], tuple[float, ...]]:
        return {}

    def transfer(self, instruction: Instruction, samples: int | None = None) -> TransferTime:
        """Seconds of a send, a collective or a swap alone on its links.

        Arguments:
            samples: samples of the instruction's microbatches; by default those of its index.

        Returns:
            Zero seconds for all other instructions.
        """
        size = self.samples_of(instruction) if samples is None else samples
        if instruction.kind is Kind.SEND and self.on_one_host(instruction):
            return TransferTime(0.0, 0.0)
        if instruction.kind is Kind.SEND:
            # A message that the sender copies itself has moved when its instruction ends.
            size_bytes = 0.0 if self.at_once(instruction) else self.carried_bytes(instruction, size)
            return message(self.cluster, instruction.device, instruction.peer, size_bytes)
        if instruction.kind in COLLECTIVES:
            members = self.members(instruction.group)
            size_bytes, threads = self.carried_bytes(instruction, size), self._overlaps.threads(instruction)
            time = collective(self.cluster, instruction.kind, members, size_bytes, threads)
            # Startup contends as well (equations 8 to 11 of LIBRA).
            return time if self._overlaps.uses(instruction) is None else TransferTime(0.0, sum(time))
        if instruction.kind in SWAPS:
            return swap(self.cluster, instruction.device, self.carried_bytes(instruction, size))
        return TransferTime(0.0, 0.0)

    def on_one_host(self, send: Instruction) -> bool:
        """True if a send's message goes from host memory to host memory of one server."""
        return send.reads[0].on_host and self.cluster.level_between(send.device, send.peer) == 0

    def carried_bytes(self, instruction: Instruction, samples: int) -> float:
        """Bytes that a transfer moves; for an all-gather, the bytes of all shards.

        A message between tensor-parallel groups counts once. If its tensors differ among the ranks of a group
        (`Tensor.own`), it counts once for each rank.

        Arguments:
            samples: samples of the instruction's microbatches.
        """
        values, parts = instruction.reads or instruction.writes, 1
        if instruction.kind in SWAPS:
            return self.bytes_of(instruction.reads[:1], samples)
        if instruction.kind is Kind.ALL_GATHER:
            parts = self.cuts[instruction.stage].replicas
        elif instruction.kind is Kind.SEND and any(map(self.memory.own, values)):
            parts = self.profile.tensor
        return parts * self.bytes_of(values, samples)

    def members(self, group: tuple[int, ...]) -> tuple[int, ...]:
        """Devices of a collective's group, with the devices of columns that are not simulated."""
        return tuple(sorted({*group, *(other for device in group for other in self._beside.get(device, ()))}))

    @cached_property
    def _beside(self) -> dict[int, tuple[int, ...]]:
        return {device: cut.beside for cut in self.cuts if cut.beside for device in cut.devices}

    def at_once(self, send: Instruction) -> bool:
        """True if a send is over before the sender's compute lane continues.

        This holds if the receive is posted by then (`Cluster.sender_copies`).
        """
        return self.cluster.copied_between(send.device, send.peer)

    def bytes_of(self, values: tuple[Value, ...], samples: int) -> float:
        """Total bytes of some values.

        Arguments:
            samples: samples of the values' microbatches.
        """
        return sum(self.memory.value_bytes(value, samples) for value in values)

    def ready_fractions(self, stage: int, samples: int) -> tuple[float, ...]:
        """When each gradient bucket is complete, as a fraction of the stage's backward.

        See program/order.py, rule 2.
        """
        found = self._known_ready.get((stage, samples))
        if found is None:
            groups = self.memory.stages[stage].groups
            found = ready_fractions(self._columns.at(samples).backward_s, self.cuts[stage].layers, groups)
            self._known_ready[(stage, samples)] = found
        return found

    def uses(self, instruction: Instruction) -> tuple[Use, ...]:
        """Resources that an instruction uses while it runs, and may share with others."""
        if instruction.kind is Kind.SEND:
            if self.on_one_host(instruction):
                return ()
            return transfer_uses(self.cluster, ((instruction.device, instruction.peer),))
        if instruction.kind in COLLECTIVES:
            speeds = self._overlaps.uses(instruction)
            key = instruction.group, speeds is None
            if key not in self._ring_uses:
                self._ring_uses[key] = collective_uses(self.cluster, self.members(instruction.group), cores=key[1])
            return (*self._ring_uses[key], *speeds) if speeds else self._ring_uses[key]
        if instruction.kind in SWAPS:
            return swap_uses(self.cluster, instruction.device, instruction.kind is Kind.SWAP_IN)
        if instruction.kind not in _COMPUTE:
            return ()
        beside = (wave_use(instruction.device, mean_demand(self, instruction)),) if self._waves else ()
        return (*compute_uses(self.cluster, instruction.device), *beside, *self._overlaps.slowed(instruction.device))

    @cached_property
    def _ring_uses(self) -> dict[tuple[tuple[int, ...], bool], tuple[Use, ...]]:
        """Resources of collectives, by group and whether the collectives use cores."""
        return {}

    @cached_property
    def _waves(self) -> bool:
        """True if devices compute for several waves at once."""
        return any(cut.wave for cut in self.cuts)

    def initial_bytes(self, device: int) -> float:
        """Bytes of a device before the first instruction.

        These are weights, optimizer state and buffers of its stages.
        """
        own = [self.memory.stages[s] for s, cut in enumerate(self.cuts) if device in cut.devices]
        weights = sum(stage.shard_bytes if stage.gathers else stage.weights_bytes for stage in own)
        return weights + sum(stage.optimizer_bytes for stage in own) + self.buffers_bytes(device)

    def buffers_bytes(self, device: int) -> float:
        """Bytes of buffers and constants of a device's stages.

        They exist once for each microbatch size, because layers are built once for each.
        """
        own = [self.memory.stages[s] for s, cut in enumerate(self.cuts) if device in cut.devices]
        return sum(stage.buffers_bytes for stage in own) * len(set(self.samples))
