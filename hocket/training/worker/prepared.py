"""Preparation of a worker before the first step.

It checks the job against the plan, captures the worker's part of the model, and proves its program. Every worker of a
run makes the same calls in the same order. Nothing is trained here.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from hocket.errors import InputError, RefusedError
from hocket.planning.plan import Plan
from hocket.planning.swapping.budgets import limit_problems
from hocket.profiling.capture.capture import Captured, capture
from hocket.profiling.capture.captured import CapturedLayer
from hocket.profiling.checks.elementwise_step import check_optimizer, check_stages
from hocket.profiling.checks.sparse_gradients import check_sparse_gradients
from hocket.profiling.job.callbacks import wants_gradient_norm
from hocket.profiling.job.derived_model.placeholders import on_meta, with_placeholders
from hocket.profiling.job.job import Job
from hocket.profiling.profile import CPU
from hocket.profiling.tensor_parallel.split import TensorSplit
from hocket.program.check.check import check, refuse
from hocket.program.order import waves
from hocket.program.passes.borders import StageCut
from hocket.program.program import Program
from hocket.program.rank_layout import RankLayout
from hocket.runtime.kv_exchange import KVExchange
from hocket.runtime.nan_guard.guard import judged_together, with_norm
from hocket.runtime.progress.segments import SegmentCounts
from hocket.runtime.stage.executable import Executable
from hocket.runtime.tensor_parallel.shard_model import Division, split_of
from hocket.training.worker.options import Options
from hocket.training.worker.ranks import check_workers
from hocket.training.worker.same_job import check_same_job
from hocket.util.compatibility import Feature, check_together

_TRIED = 8  # rows and columns of the weight on which an optimizer is tried


@dataclass(frozen=True)
class RankInfo:
    """Rank of a worker, its local rank on its machine, and the rendezvous store.

    Attributes:
        folder: folder that is removed after the run, for temporary files; None without one.
    """

    rank: int
    workers: int
    local_rank: int
    store: Store
    folder: str | None = None


@dataclass(frozen=True)
class Prepared:
    """One worker's part of a run.

    Attributes:
        job: the job, as the plan trains it.
        captured: the job's model, or this rank's shard of it.
        division: the tensor-parallel division; None without tensor parallelism.
        program: the proven program.
        layout: the plan's layers, samples and limits.
        pace: microbatches of a period, of a step, and outside of the periods.
        number: the worker's device in the cluster.
        group: the device of the program that the worker runs; with tensor parallelism, the number of its group.
        member: the worker's tensor-parallel rank; 0 without tensor parallelism.
        device: torch device of its tensors.
        flops: the model's floating-point operations in a step, on all workers.
        loaders: number of processes that read the worker's samples ahead.
        numberless: True if the weights have no values until a file is read, because the model was on `meta`.
    """

    job: Job
    plan: Plan
    captured: Captured
    division: Division | None
    program: Program
    layout: RankLayout
    pace: SegmentCounts
    number: int
    group: int
    member: int
    device: torch.device
    flops: float
    loaders: int
    numberless: bool

    @property
    def executable(self) -> Executable:
        """The program with this rank's model and device, as the engine runs it."""
        return Executable(self.captured, self.layout, self.program, self.device, self.division)


def fitting(job: Job, plan: Plan, options: Options, workers: int) -> Job:
    """Check a job against a plan; return it with the options' batch size, if any.

    Raises:
        InputError: plan, job and number of workers do not fit.
    """
    check_workers(plan.worker_devices, workers)
    # Plans that were written by hand or made from imported profiles have no digest.
    if plan.model_digest and plan.model_digest != job.model_digest:
        found = f"parameters ({job.model_digest[:12]}...) that differ in name, shape or type from the plan's model"
        expected = f"the model that was profiled ({plan.model_digest[:12]}...)"
        hint = "Profile the job and plan again, or change the model back."
        raise InputError("model", f"{found} {plan.model!r}", expected, hint)
    if options.batch_size is not None:
        job = replace(job, batch_size=options.batch_size)
    if plan.batch_size != job.batch_size:
        hint = f"Plan again with --batch {job.batch_size}, or give the job batch_size={plan.batch_size}."
        raise InputError("batch_size", f"{plan.batch_size} in the plan", f"{job.batch_size}, as in the job", hint)
    if plan.dtype and plan.dtype != job.dtype:
        hint = "Profile the job and plan again, or give the job the precision that was profiled."
        raise InputError("precision", f"{plan.dtype} in the plan", f"{job.dtype}, as in the job", hint)
    return job


def prepare(
    job: Job, plan: Plan, options: Options, rank_info: RankInfo, board: KVExchange, captured: Captured | None = None
) -> Prepared:
    """Prepare a worker; a collective call of all workers.

    Arguments:
        board: exchange of JSON values among the workers.
        captured: the undivided job, captured for the plan's microbatches; by default it is captured here.

    Raises:
        InputError: the plan does not fit the job or the machine, or the job differs between the workers.
        ProgramError: the plan's program is not legal.
    """
    numberless = on_meta(job.model)
    if numberless and options.reads_weights:
        with_placeholders(job.model)
    check_same_job(job, board)
    # The ranks of a tensor-parallel group run the instructions of their group, each on its own device.
    number = plan.worker_devices[rank_info.rank]
    group, member = divmod(number, plan.tensor)
    device = device_of(plan.cluster.type_of(number).name, number, options.device, rank_info.local_rank)
    captured, division = captured or capture(job, plan.microbatch_size), None
    flops = captured.step_flops(plan.batch_size)
    if captured.parts:
        check_subtasks(job, plan.tensor)
    if len(plan.stages) > 1:
        check_stages(job)
    if plan.tensor > 1:
        division = Division(job, _agreed_split(job, plan.tensor, plan.sequence_parallel, board), member)
        captured = capture(division.job, plan.microbatch_size, like=captured)
    program, layout = plan.compile(captured), plan.layout(captured)
    check_sparse_gradients(
        job, "the plan sums them over replicas or stages", _summed(layout.cuts, captured.ties, captured.layers)
    )
    if options.on_nan == "skip":
        check_sparse_gradients(job, "on_nan skip needs their norm")
        captured = judged_together(captured, program.rule)
        program, layout = plan.compile(captured), plan.layout(captured)
    elif wants_gradient_norm(job.callbacks) and program.rule.kind == "sync":
        check_sparse_gradients(job, "a callback wants their norm")
        captured = with_norm(captured)
        program, layout = plan.compile(captured), plan.layout(captured)
    loaders = plan.loaders if options.loaders is None else options.loaders
    if loaders and waves(program.rule):
        check_together("loaders", Feature.LOADERS, Feature.WAVES)
    refuse(program, check(program) or limit_problems(plan, program))
    pace = SegmentCounts(program.admitted, program.stride, layout.batches.count)
    return Prepared(
        job, plan, captured, division, program, layout, pace, number, group, member, device, flops, loaders, numberless
    )


def _summed(cuts: Sequence[StageCut], ties: Sequence[Sequence[int]], layers: Sequence[CapturedLayer]) -> set[str]:
    """Names of the parameters with gradients that are summed over replicas or stages.

    Arguments:
        ties: groups of layers that share a parameter.
    """
    stage_of = {layer: s for s, cut in enumerate(cuts) for layer in cut.layers}
    summed = {layer for cut in cuts if cut.replicated for layer in cut.layers}
    for tie in ties:
        if len({stage_of[layer] for layer in tie}) > 1:
            summed |= set(tie)
    return {parameter for layer in summed for parameter in layers[layer].parameters}


def _agreed_split(job: Job, tensor: int, sequence_parallel: bool, board: KVExchange) -> TensorSplit:
    """Find the tensor-parallel split on the first worker, and share it.

    Arguments:
        tensor: tensor-parallel size.
        sequence_parallel: True to divide the sequence in layers that are not split.

    Raises:
        RefusedError: the model cannot be divided. Every worker raises the same error.
    """
    fact: dict[str, Any] = {}
    if board.rank == 0:
        try:
            fact["split"] = split_of(job, tensor, sequence_parallel).as_data()
        except RefusedError as error:
            fact["refused"] = [error.place, error.found, error.expected, error.next_step]
    found = board.share(fact)[0]
    if "refused" in found:
        raise RefusedError(*found["refused"])  # the error of the first worker, on every worker
    return TensorSplit.read(found["split"])


def check_subtasks(job: Job, tensor: int) -> None:
    """Refuse subtasks (`Job.subtask_bytes`) that the plan or the optimizer rules out.

    Arguments:
        tensor: tensor-parallel size of the plan.

    Raises:
        RefusedError: the plan uses tensor parallelism, or the optimizer's step of some rows of a weight differs from
            that of the whole weight.
    """
    if tensor > 1:
        check_together("Job.subtask_bytes", Feature.SUBTASKS, Feature.TENSOR)
    check_optimizer(job, ((_TRIED, _TRIED), (_TRIED,)), lambda whole: whole.chunk(2), Feature.SUBTASKS)


def device_of(kind: str, number: int, wanted: str, local_rank: int) -> torch.device:
    """Choose the torch device of one worker.

    Arguments:
        kind: device type of the worker's device in the cluster.
        number: the worker's device in the cluster.
        wanted: one of the devices of `Options.device`: auto, cpu or cuda.

    Raises:
        InputError: a GPU is required and missing.
    """
    if wanted == "cpu" or (wanted == "auto" and kind == CPU):
        return torch.device("cpu")
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if local_rank >= there:
        hint = "Use --device cpu to run it on this machine's cores, or plan for the available devices."
        raise InputError(f"device {number}", f"{there} CUDA devices", f"at least {local_rank + 1}, for {kind}", hint)
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


@contextmanager
def process_group(rank_info: RankInfo, device: torch.device) -> Iterator[None]:
    """Create torch's default process group inside this context, for the engine."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    store = PrefixStore("group", rank_info.store)
    dist.init_process_group(backend, store=store, rank=rank_info.rank, world_size=rank_info.workers)
    yield
    dist.destroy_process_group()
