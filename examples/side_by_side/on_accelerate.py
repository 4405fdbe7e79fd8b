"""Training loop with Hugging Face Accelerate. Data, model and settings are in tiny.py.

pip install 'hocket[compare]'
torchrun --nproc-per-node 2 examples/side_by_side/on_accelerate.py --folder saved --updates 15

`--resume` goes on from the newest checkpoint of the folder. losses.json has the loss of each update.
"""

import argparse
import json
from math import inf
from pathlib import Path

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from tiny import BATCH, EVERY, HELD_OUT, MICROBATCHES, NORM, RATE, TRAINED, UPDATES_OF_AN_EPOCH, factor, make_model
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


class Progress:
    """What a checkpoint needs beside the state that Accelerate saves by itself."""

    def __init__(self) -> None:
        self.update, self.best, self.losses, self.evaluations = 0, inf, [], []

    def state_dict(self) -> dict:
        return vars(self).copy()

    def load_state_dict(self, state: dict) -> None:
        vars(self).update(state)


def evaluate(accelerator: Accelerator, model: torch.nn.Module, held_out: DataLoader) -> float:
    """Return the mean loss over all samples of the held-out data."""
    model.eval()
    with torch.no_grad():
        losses = [cross_entropy(model(inputs), targets, reduction="none") for inputs, targets in held_out]
    model.train()
    return accelerator.gather_for_metrics(torch.cat(losses)).mean().item()


def train(folder: Path, updates: int, precision: str, resume: bool) -> None:
    """Train up to a number of updates, counted from the first run on."""
    accelerator = Accelerator(
        cpu=True,
        mixed_precision=precision,
        gradient_accumulation_steps=MICROBATCHES,
        dataloader_config=DataLoaderConfiguration(split_batches=True),
        log_with="tensorboard",
        project_dir=folder,
    )
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    loader, held_out = DataLoader(TRAINED, BATCH // MICROBATCHES), DataLoader(HELD_OUT, BATCH)
    model, optimizer, scheduler, loader, held_out = accelerator.prepare(model, optimizer, scheduler, loader, held_out)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    accelerator.init_trackers("run")
    batches = loader
    if resume:
        accelerator.load_state(folder / "last")
        batches = accelerator.skip_first_batches(loader, progress.update % UPDATES_OF_AN_EPOCH * MICROBATCHES)
    while progress.update < updates:
        losses = []
        for inputs, targets in batches:
            with accelerator.accumulate(model):
                loss = cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), NORM)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "mean").item())
            if accelerator.sync_gradients:
                progress.update += 1
                progress.losses.append(sum(losses) / MICROBATCHES)
                losses.clear()
                accelerator.log({"loss": progress.losses[-1], "lr": scheduler.get_last_lr()[0]}, step=progress.update)
                if progress.update % EVERY == 0:
                    progress.evaluations.append(evaluate(accelerator, model, held_out))
                    if progress.evaluations[-1] < progress.best:
                        progress.best = progress.evaluations[-1]
                        accelerator.save_state(folder / "best")
                accelerator.save_state(folder / "last")
                if progress.update == updates:
                    break
        batches = loader
    accelerator.save_model(model, folder / "weights")
    if accelerator.is_main_process:
        (folder / "losses.json").write_text(json.dumps({"workers": accelerator.num_processes, **vars(progress)}))
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--precision", choices=("no", "bf16", "fp16"), default="no")
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    train(given.folder, given.updates, given.precision, given.resume)
