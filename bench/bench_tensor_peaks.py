"""Peak memory of a tensor-parallel GPT, with and without sharded vocabulary and sequence parallelism.

    python bench/bench_tensor_peaks.py [--steps 3]

The GPT has 4 blocks of width 128 and sequences of 256. A batch has two microbatches of 4. It trains with dropout and
Adam. Ranks are processes over gloo on this machine. The peak is the largest number of bytes of tensors that the engine
counts on a rank. It does not depend on the speed of the machine.
"""

import argparse
import multiprocessing
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from _workers import free_port
from torch.utils.data import TensorDataset

from hocket.hardware.cluster import Cluster, Level
from hocket.models.gpt import GPT, GPTSizes, language_loss
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job import Job
from hocket.runtime.engine.distributed import Worker
from hocket.runtime.stage.executable import Executable
from hocket.runtime.tensor_parallel.shard_model import Division, split_of

SEQ, BATCH, MICROBATCH = 256, 8, 4
WIDTHS = (2, 4)


class Case(NamedTuple):
    """One column of a table.

    Attributes:
        vocab: vocabulary size.
        divided: True to shard the vocabulary over the ranks.
    """

    vocab: int
    divided: bool = True
    sequence_parallel: bool = False

    def job(self) -> Job:
        """Job with the GPT and random tokens."""
        torch.manual_seed(0)
        model = GPT(GPTSizes(n_layer=4, d_model=128, n_head=4, seq=SEQ, vocab=self.vocab), dropout=0.1)
        data = TensorDataset(*torch.randint(self.vocab, (2, 2 * BATCH, SEQ)))
        return Job(model, language_loss, data, partial(torch.optim.Adam, lr=1e-3), BATCH, name="gpt")


TABLES = {
    "50,257 tokens": {"vocabulary on every rank": Case(50257, False), "vocabulary divided": Case(50257)},
    "256 tokens": {"without sequence parallelism": Case(256), "with it": Case(256, sequence_parallel=True)},
}


def worker(rank: int, width: int, port: int, case: Case, steps: int, peaks: Any) -> None:
    """Train as one rank of a group, and put the peak in bytes into the queue."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=width)
    job = case.job()
    captured, division = capture(job, MICROBATCH), None
    if width > 1:
        split = split_of(job, width, case.sequence_parallel)
        if not case.divided:
            split = replace(split, embedding=None, output=None)
        division = Division(job, split, rank)
        captured = capture(division.job, MICROBATCH, like=captured)
    cluster = Cluster("local", (Level("local", width, 2e9, 1e-4),), "cpu-core", sender_copies=True)
    stage = PlanStage(tuple(layer.name for layer in captured.layers), (0,))
    plan = Plan("flush", job.name, BATCH, MICROBATCH, (stage,), cluster, tensor=width)
    plan = replace(plan, sequence_parallel=case.sequence_parallel)
    engine = Worker(Executable(captured, plan.layout(captured), plan.compile(captured), division=division))
    engine.run(steps)
    peaks.put(engine.peak_memory_bytes)
    dist.barrier()
    dist.destroy_process_group()


def peak_mb(width: int, case: Case, steps: int) -> float:
    """Largest peak of the ranks of a group, in MB."""
    context = multiprocessing.get_context("spawn")
    peaks, port = context.Queue(), free_port()
    ranks = [context.Process(target=worker, args=(r, width, port, case, steps, peaks)) for r in range(width)]
    for rank in ranks:
        rank.start()
    found = [peaks.get(timeout=600) for _ in ranks]
    for rank in ranks:
        rank.join()
    return max(found) / 1e6


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=3)
    steps = parser.parse_args().steps
    for title, columns in TABLES.items():
        print(f"\n{title}\n\n| devices | {' | '.join(columns)} |\n|---|---|---|", flush=True)
        cases = tuple(columns.values())
        print(f"| 1 | {peak_mb(1, cases[0], steps):.1f} MB | |", flush=True)
        for width in WIDTHS:
            plain, other = (peak_mb(width, case, steps) for case in cases)
            print(f"| {width} | {plain:.1f} MB | {other:.1f} MB |", flush=True)


if __name__ == "__main__":
    main()
