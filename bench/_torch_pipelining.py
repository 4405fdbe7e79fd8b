"""torch.distributed.pipelining with the GPT, stages and microbatches of bench_pipelining.py."""

import torch
from jobs.gpt import BATCH_SIZE, N_LAYER, SEQ, make_model, make_optimizer
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from hocket.models.gpt import language_loss
from hocket.models.text import Text
from hocket.profiling.data.source import order


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
    """Second half of the blocks and the head."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.blocks, self.ln, self.head = model.blocks[N_LAYER // 2 :], model.ln, model.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


class Pipelining:
    """One worker: its half of the GPT under torch's GPipe or 1F1B schedule, and its optimizer."""

    def __init__(self, name: str, microbatches: int, rank: int) -> None:
        self.rank = rank
        module = (First, Last)[rank](make_model())
        stage = PipelineStage(module, rank, 2, torch.device("cpu"))
        schedule = {"gpipe": ScheduleGPipe, "flush": Schedule1F1B}[name]
        self.schedule = schedule(stage, n_microbatches=microbatches, loss_fn=language_loss)
        self.optimizer = make_optimizer(module.parameters())
        self.data = Text(SEQ)

    def train(self, batches: int) -> None:
        """Train on the first `batches` batches."""
        for step in range(batches):
            samples = [self.data[i] for i in order(step, BATCH_SIZE, len(self.data), 0)]
            tokens, targets = (torch.stack(column) for column in zip(*samples, strict=True))
            if self.rank == 0:
                self.schedule.step(tokens)
            else:
                self.schedule.step(target=targets, losses=[])
            self.optimizer.step()
            self.optimizer.zero_grad()
