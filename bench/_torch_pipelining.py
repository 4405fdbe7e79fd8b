"""One worker of `torch.distributed.pipelining`, for bench_pipelining.py: same GPT, same stages, same microbatches.

Usage (set by the caller): RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; arguments: schedule microbatches steps.
Prints one JSON line on the last rank: the median seconds of a step.
"""

import json
import statistics
import sys
import time
import warnings

import torch
import torch.distributed as dist
from jobs.gpt import BATCH_SIZE, N_LAYER, SEQ, make_model, make_optimizer
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from hocket.profile.job import order
from hocket.zoo.gpt import language_loss
from hocket.zoo.text import Text

WARM_UP = 5


class First(nn.Module):
    """Embeddings and the first half of the blocks."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.tok, self.pos, self.drop = model.tok, model.pos, model.drop
        self.blocks = model.blocks[: N_LAYER // 2]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.tok(tokens) + self.pos(torch.arange(tokens.shape[1])))
        for block in self.blocks:
            x = block(x)
        return x


class Last(nn.Module):
    """The second half of the blocks and the head."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.blocks, self.ln, self.head = model.blocks[N_LAYER // 2 :], model.ln, model.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


def main() -> None:
    """Train for some steps and print the median step time."""
    schedule_name, microbatches, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    module = (First, Last)[rank](make_model())
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    schedule = {"gpipe": ScheduleGPipe, "flush": Schedule1F1B}[schedule_name](
        stage, n_microbatches=microbatches, loss_fn=language_loss
    )
    optimizer = make_optimizer(module.parameters())
    data = Text(SEQ)
    times, losses_seen = [], []
    for step in range(steps + WARM_UP):
        samples = [data[i] for i in order(step, BATCH_SIZE, len(data), 0)]
        tokens, targets = (torch.stack(column) for column in zip(*samples, strict=True))
        dist.barrier()
        began = time.perf_counter()
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=targets, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
        losses_seen += [float(torch.stack(losses).mean())] if losses else []
    slowest = torch.tensor(times[WARM_UP:])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if rank == 1:
        print(json.dumps({"iteration_s": statistics.median(slowest.tolist()), "losses": losses_seen}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
