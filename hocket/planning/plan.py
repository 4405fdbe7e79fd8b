"""Plan: the file that people read and edit.

A plan names layers and devices; the program is compiled from it.

Rules of this file: a plan contains nothing that can be derived. Stage boundaries, tied weights and the program
follow from the graph and the strategy. The exception is `predicted`: the planner's prediction when it wrote the
plan.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from hocket.errors import InputError, nearest
from hocket.hardware.cluster import Cluster
from hocket.hardware.groups import Grouped, grouped
from hocket.profiling.data.source import check_loaders
from hocket.profiling.profile import is_cpu
from hocket.program.microbatches import Microbatches
from hocket.program.passes.borders import LayerGraph, StageCut, stage_shapes
from hocket.program.passes.prefetch import check_prefetch
from hocket.program.passes.swapping.settings import Swapping
from hocket.program.program import MAX_CPU_THREADS, MAX_THREADS, SHARDS, Program, StageShape
from hocket.program.rank_layout import RankLayout
from hocket.strategies.base.strategy import compile_strategy, habits, members, merged, microbatches_of
from hocket.util.compatibility import Feature, check_together
from hocket.util.documents import parse_yaml, seems, with_amounts, write_yaml
from hocket.util.files import digest, read_bytes, write_atomic
from hocket.util.schema import as_data, read_as

FORMAT = "hocket-plan-1"
COMPILERS = ("inductor", "aot_eager")
"""Backends of torch.compile.

inductor, torch's default, generates C++ for a CPU and Triton for a GPU. aot_eager traces in the same way without
generating code, for tests.
"""
_MAX_MICROBATCHES = 2**20  # of one batch: sizes that are read from a file are bounded


@dataclass(frozen=True)
class PlanStage:
    """One stage of a plan.

    Attributes:
        layers: names of the stage's layers, in the order of the profile.
        devices: number of the device of each replica of the stage; in a tensor-parallel plan, numbers of
            tensor-parallel groups.
        recompute: True to recompute activations before the backward pass, instead of keeping them.
        buckets: names of the layers of each gradient bucket, in the order in which a backward pass finishes them; ()
            for one bucket.
        compile: backend of torch.compile for the stage, inductor or aot_eager; empty to run it eagerly.
        threads: for each bucket, the number of processor threads, or of NCCL CTAs on a GPU, that move its
            gradients; () for the library's default.
        wave: index of the model replica to which the stage belongs, for a strategy with several model replicas on the
            same devices (tick_tock). Each model replica has all layers.
    """

    layers: tuple[str, ...]
    devices: tuple[int, ...]
    recompute: bool = False
    buckets: tuple[tuple[str, ...], ...] = ()
    compile: str = ""
    threads: tuple[int, ...] = ()
    wave: int = 0

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def check(self, place: str, cluster: Cluster, tensor: int, shard: str) -> None:
        """Refuse a stage that its plan cannot have.

        Arguments:
            place: name of the stage in errors.
            cluster: the plan's cluster, with tensor-parallel groups as its devices.
            tensor: the plan's tensor-parallel size.
            shard: state that the plan shards over replicas.

        Raises:
            InputError: an unknown compiler, a missing or unknown device, or buckets or threads that do not fit.
        """
        if self.compile and self.compile not in COMPILERS:
            hint = nearest(self.compile, COMPILERS)
            raise InputError(f"{place}.compile", repr(self.compile), f"one of {', '.join(COMPILERS)}", hint)
        if not self.devices or len(set(self.devices)) != len(self.devices):
            raise InputError(f"{place}.devices", str(list(self.devices)), "at least one device, each once")
        for device in self.devices:
            if not 0 <= device < cluster.devices:
                what = "devices" if tensor == 1 else f"groups of {tensor} devices"
                name = "device" if tensor == 1 else "group"
                expected = f"0 to {cluster.devices - 1}, the cluster's {what}"
                raise InputError(f"{place}.devices", f"{name} {device}", expected)
        listed = sorted(name for bucket in self.buckets for name in bucket)
        if self.buckets and listed != sorted(self.layers):
            odd = sorted(set(listed) ^ set(self.layers)) or [n for n in listed if listed.count(n) > 1]
            raise InputError(
                f"{place}.buckets", f"{odd[0]!r} missing, unknown or twice", "each layer of the stage once"
            )
        if not self.threads:
            return
        place, count = f"{place}.threads", max(1, len(self.buckets))
        if len(self.threads) != count:
            raise InputError(place, f"{len(self.threads)} numbers", f"{count}, one for each bucket")
        processor = any(is_cpu(cluster.node_of(device).device_type) for device in self.devices)
        most = MAX_CPU_THREADS if processor else MAX_THREADS
        if not all(1 <= threads <= most for threads in self.threads):
            where = " on a processor" if processor else ""
            raise InputError(place, str(list(self.threads)), f"numbers from 1 to {most}{where}")
        if shard != "none" and len(self.devices) > 1:
            expected = "threads only for all-reduces of whole gradients (shard: none)"
            hint = "Leave threads out, or use shard: none."
            raise InputError(place, f"threads, with shard: {shard}", expected, hint)


@dataclass(frozen=True)
class Predicted:
    """Prediction when the plan was written.

    Attributes:
        iteration_s: seconds for `batch_size` samples.
        samples_per_s: throughput.
        peak_memory_bytes: peak bytes of each device.
        bubble_fraction: idle time of the devices, divided by their busy time.
    """

    iteration_s: float
    samples_per_s: float
    peak_memory_bytes: dict[int, float]
    bubble_fraction: float = 0.0

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


@dataclass(frozen=True)
class Plan:
    """Plan of one job on one cluster.

    Attributes:
        strategy: name of a schedule: a file in hocket/strategies/schedules.
        options: values of the schedule's options.
        predicted: prediction when the plan was written; None without one. Commands predict the plan anew.
        model: name of the profile.
        profile: path of the profile, relative to the plan's folder.
        profile_digest: SHA-256 of the profile, so that a plan is never run against another profile.
        model_digest: SHA-256 over the names and shapes of the model's parameters (profiling/job/job.py), so that a
            plan never trains another model; empty if the profile records none.
        dtype: data type in which the profiled job computed, such as "float32"; predicted seconds and bytes hold for
            it. Empty if the profile records none.
        batch_size: samples of one update; for strategies that update after each microbatch, samples of one reported
            iteration.
        microbatch_size: samples of one microbatch. If it does not divide the batch size, the last microbatch is
            smaller. For strategies that merge microbatches (burst_parallel), it is an upper limit: the number of
            microbatches is a multiple of every stage's number of devices (program/microbatches.py).
        stages: in pipeline order.
        cluster: the hardware that the plan was made for.
        tensor: tensor-parallel size. Ranks of a group are neighbours: group k is the devices from k x tensor to k x
            tensor + tensor - 1.
        slices: True for scatter/gather: each rank of a group sends one part of a message that all ranks hold, and the
            receivers gather the parts behind the slow link (Narayanan's dissertation, section 4.4.1).
        sequence_parallel: True if each rank of a group works on a slice of the sequence in layers that are not split
            (Korthikanti et al. 2022, section 4.2.2), and sends this slice from stage to stage.
        shard: state that is sharded over a stage's replicas (docs/explanation/sharding.md): "none", "optimizer" for
            optimizer state and the optimizer step, or "full" for weights as well.
        swap: settings for swapping values to host memory (docs/explanation/harmony.md); None without swapping.
        prefetch: number of microbatches that are loaded ahead, beside computation: while a forward pass runs, inputs of
            so many later microbatches may wait on its device. 0: a microbatch is loaded directly before its forward
            pass, and computation waits.
        loaders: number of processes of each worker that read its samples ahead; 0 to read them in the worker.
        read_once: True if only the first stage reads samples, and sends later stages the items that they need; False
            if each stage that needs items reads the samples itself.
        format: name and version of the file format: always "hocket-plan-1".
    """

    strategy: str
    model: str
    batch_size: int
    microbatch_size: int
    stages: tuple[PlanStage, ...]
    cluster: Cluster
    options: dict[str, Any] = field(default_factory=dict)
    profile: str = ""
    profile_digest: str = ""
    model_digest: str = ""
    dtype: str = ""
    predicted: Predicted | None = None
    tensor: int = 1
    slices: bool = False
    sequence_parallel: bool = False
    shard: str = "none"
    swap: Swapping | None = None
    prefetch: int = 0
    loaders: int = 0
    read_once: bool = False
    format: str = FORMAT

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise InputError("format", repr(self.format), repr(FORMAT))
        if self.batch_size < 1:
            raise InputError("batch_size", str(self.batch_size), ">= 1")
        if not 1 <= self.microbatch_size <= self.batch_size:
            expected = f"a number from 1 to {self.batch_size} (the batch size)"
            raise InputError("microbatch_size", str(self.microbatch_size), expected)
        count = -(-self.batch_size // self.microbatch_size)
        if count > _MAX_MICROBATCHES:
            found = f"{self.batch_size}, {count:,} microbatches of {self.microbatch_size}"
            raise InputError("batch_size", found, f"at most {_MAX_MICROBATCHES:,} microbatches")
        if self.tensor < 1:
            raise InputError("tensor", str(self.tensor), ">= 1")
        check_prefetch(self.prefetch)
        check_loaders(self.loaders)
        for key in ("slices", "sequence_parallel"):
            if getattr(self, key) and self.tensor == 1:
                raise InputError(key, "true, with tensor: 1", "false", "Set `tensor` to 2 or more.")
        check_together("plan", *self.features, *([Feature.LOADERS] if self.loaders else []))
        if self.shard not in SHARDS:
            raise InputError("shard", repr(self.shard), f"one of {', '.join(SHARDS)}", nearest(self.shard, SHARDS))
        cluster = self.group.cluster
        limits = self.swap.device_bytes if self.swap is not None else None
        if isinstance(limits, tuple) and len(limits) != cluster.devices:
            expected = f"{cluster.devices}, one for each device of the cluster, or one for all"
            raise InputError("swap.device_bytes", f"{len(limits)} numbers", expected)
        if not self.stages:
            raise InputError("stages", "none", "at least one stage")
        for s, stage in enumerate(self.stages):
            stage.check(f"stages.{s}", cluster, self.tensor, self.shard)
        if self.strategy in members():  # an unknown strategy is refused where it is looked up, with a better message
            _ = self.batches

    @cached_property
    def group(self) -> Grouped:
        """The cluster with each tensor-parallel group as one device."""
        return grouped(self.cluster, self.tensor, self.slices)

    @property
    def features(self) -> frozenset[Feature]:
        """Features of the plan that may conflict with other features.

        Features that depend on stages and update rule are found by `strategy.in_use`.
        """
        said = {
            Feature.TENSOR: self.tensor > 1,
            Feature.SLICES: self.slices,
            Feature.WAVES: any(stage.wave for stage in self.stages),
            Feature.SEQUENCE_PARALLEL: self.sequence_parallel,
            Feature.COMPILE: any(stage.compile for stage in self.stages),
            Feature.SWAP: self.swap is not None,
            Feature.PREFETCH: self.prefetch > 0,
            Feature.READ_ONCE: self.read_once,
        }
        return frozenset(feature for feature, asked in said.items() if asked)

    @cached_property
    def worker_devices(self) -> tuple[int, ...]:
        """Devices of the cluster that the plan's workers run, ascending; worker i runs the i-th.

        With tensor-parallel size t, device d has the tensor-parallel rank d % t in group d // t. Worker i has the
        tensor-parallel rank i % t.
        """
        named = sorted({device for stage in self.stages for device in stage.devices})
        return tuple(group * self.tensor + member for group in named for member in range(self.tensor))

    @cached_property
    def batches(self) -> Microbatches:
        """Division of a batch into microbatches.

        Raises:
            InputError: a strategy that merges microbatches would have microbatches without a sample, or the strategy
                is unknown.
        """
        widths = (len(stage.devices) for stage in self.stages)
        return microbatches_of(self.strategy, self.batch_size, self.microbatch_size, widths)

    @property
    def microbatches(self) -> int:
        """Number of microbatches in one batch."""
        return self.batches.count

    def samples(self, microbatch: int, merged: int = 1) -> int:
        """Number of samples in a microbatch, or in several consecutive ones.

        Arguments:
            microbatch: index of the first microbatch, counted over all batches.
            merged: number of consecutive microbatches.
        """
        return self.batches.samples(microbatch, merged)

    def cuts(self, graph: LayerGraph) -> tuple[StageCut, ...]:
        """Stages of the plan, with layers as indices into a graph.

        Raises:
            InputError: the graph does not have one of the layers; the message suggests the nearest name.
        """
        index = {layer.name: i for i, layer in enumerate(graph.layers)}
        cuts = []
        for s, stage in enumerate(self.stages):
            for name in stage.layers:
                if name not in index:
                    hint = _parts(name, index) or nearest(name, index) or "The plan may belong to another model."
                    raise InputError(f"stages.{s}.layers", f"unknown layer {name!r}", "a layer of the model", hint)
            cuts.append(
                StageCut(
                    layers=tuple(sorted(index[name] for name in stage.layers)),
                    devices=stage.devices,
                    recompute=stage.recompute,
                    buckets=tuple(tuple(index[name] for name in bucket) for bucket in stage.buckets),
                    threads=stage.threads,
                    shard=self.shard,
                    merged=merged(self.strategy, len(stage.devices), self.batches.count),
                    wave=stage.wave,
                    read_once=self.read_once,
                )
            )
        return tuple(cuts)

    def shapes(self, graph: LayerGraph) -> tuple[StageShape, ...]:
        """Shape of each stage: the facts that the program depends on.

        Raises:
            InputError: the plan does not fit the graph.
        """
        return stage_shapes(graph, self.cuts(graph))

    def compile(self, graph: LayerGraph) -> Program:
        """Compile the plan to a program, for a graph (a profile, or a captured model).

        Raises:
            InputError: the plan does not fit the graph.
            RefusedError: the strategy does not support the plan.
        """
        shapes = stage_shapes(graph, self.cuts(graph))
        return compile_strategy(self.strategy, shapes, self.batches.count, self.options, self.swap, self.prefetch)

    def layout(self, graph: LayerGraph) -> RankLayout:
        """Layers, devices, samples and limits of the plan's stages, for an engine.

        The engine runs the plan's program with them.

        Raises:
            InputError: the plan does not fit the graph.
        """
        cuts = self.cuts(graph)
        return RankLayout(
            batches=self.batches,
            cuts=cuts,
            shapes=stage_shapes(graph, cuts),
            compilers=tuple(stage.compile for stage in self.stages),
            tensor=self.tensor,
            slices=self.slices,
            swap=self.swap,
            habits=habits(self.strategy, self.options),
            host_bytes=self.host_bytes(self.group.cluster),
            plan_digest=self.digest,
            profile_digest=self.profile_digest,
        )

    def host_bytes(self, cluster: Cluster) -> dict[int, float]:
        """Bytes of host memory that each device of the plan may use, by device.

        This is the plan's limit, or else an equal part of the server's host memory. A device without a limit whose
        server's host memory is unknown has no entry.

        Arguments:
            cluster: cluster to which the plan's device numbers refer.
        """
        found: dict[int, float] = {}
        for device in {d for stage in self.stages for d in stage.devices}:
            limit = self.swap.host_bytes if self.swap is not None else None
            server = cluster.host_bytes(device)
            if limit is not None:
                found[device] = limit
            elif server is not None:
                found[device] = server / cluster.levels[0].width
        return found

    @property
    def trace_meta(self) -> dict[str, Any]:
        """Facts of the plan that its traces record, so that traces of two plans are never compared.

        The name of a program has neither sizes nor the profile.
        """
        sizes = {"batch_size": self.batch_size, "microbatch_size": self.microbatch_size}
        return sizes | ({"profile_digest": self.profile_digest} if self.profile_digest else {})

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the plan's text form."""
        return digest(self.to_yaml().encode())

    def to_yaml(self) -> str:
        """The plan as text; `from_yaml` is the inverse."""
        return write_yaml(self.to_data())

    def to_data(self) -> dict[str, Any]:
        """The plan as dictionaries and lists, in the order of a plan file, without defaults."""
        data = as_data(self)
        data["cluster"] = self.cluster.to_data()
        about = ("format", "strategy", "options", "model", "profile", "profile_digest", "model_digest", "dtype")
        groups = ("tensor", "slices", "sequence_parallel", "shard", "swap", "prefetch", "loaders", "read_once")
        order = (*about, "batch_size", "microbatch_size", *groups, "stages", "cluster", "predicted")
        plain = {"tensor": 1, "slices": False, "sequence_parallel": False, "shard": "none"}
        plain |= {"prefetch": 0, "loaders": 0, "read_once": False}
        slim = {k: data[k] for k in order if k == "model" or not (data[k] in (None, "", {}) or data[k] == plain.get(k))}
        if self.swap is not None:
            swap = {k: v for k, v in slim["swap"].items() if v not in (None, False, 0, [])}
            swap["stages"] = [
                {k: v for k, v in stage.items() if v not in (0.0, [])} for stage in swap.get("stages", [])
            ]
            slim["swap"] = {k: v for k, v in swap.items() if v != []}
        slim["stages"] = [{k: v for k, v in stage.items() if v not in (False, [], "")} for stage in slim["stages"]]
        return slim

    @classmethod
    def from_yaml(cls, text: bytes | str, place: str = "plan") -> "Plan":
        """Read a plan from YAML; unknown keys are refused.

        Raises:
            InputError: the text is not a plan, or it has unknown or missing keys, or values of wrong types or out
                of range.
        """
        step = "Make one with `hocket plan`."
        try:
            data = parse_yaml(text, place)
        except InputError as error:
            raise InputError(error.place, error.found, f"a plan ({FORMAT}, YAML)", step) from None
        if not isinstance(data, dict) or not ({"strategy", "stages"} & set(data) or data.get("format") == FORMAT):
            raise InputError(place, seems(data), f"a plan ({FORMAT})", step)
        return read_as(cls, with_amounts(data, place), place)

    @classmethod
    def read(cls, path: str | Path) -> "Plan":
        """Read a plan file (YAML).

        Raises:
            InputError: there is no such file, or its text is no valid plan.
        """
        if Path(path).suffix == ".py":  # a job, whose first lines may happen to be valid YAML
            raise InputError(str(path), "a Python file", f"a plan ({FORMAT})", "Make one with `hocket plan`.")
        return cls.from_yaml(read_bytes(path, 16 * 2**20), str(path))

    def save(self, path: str | Path) -> None:
        """Write the plan's text form, atomically."""
        write_atomic(path, self.to_yaml())


def _parts(name: str, known: Collection[str]) -> str:
    """Advice if a plan names a layer and the model has its subtasks, or the reverse.

    Arguments:
        name: name of the unknown layer.
        known: names of the model's layers.

    Returns:
        A sentence; empty if neither is the case.
    """
    whole, _, part = name.rpartition(".")
    if whole in known and part.isdigit():
        return (
            f"It is a subtask of {whole}, which this job does not cut: set the job's subtask_bytes as it was profiled."
        )
    if f"{name}.0" in known:
        return "This job cuts it by its subtask_bytes: profile the job and plan again, or leave subtask_bytes out."
    return ""
