"""Training with Lightning. Data, model and settings are in tiny.py.

pip install 'hocket[compare]'
python examples/side_by_side/on_lightning.py --folder saved --updates 15

`--resume` goes on from the newest checkpoint of the folder. `--sharded` shards the state (FSDP2), without checkpoints.
losses.json has the loss of each update.
"""

import argparse
import json
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import ModelParallelStrategy
from safetensors.torch import save_file
from tiny import BATCH, EVERY, HELD_OUT, MICROBATCH, MICROBATCHES, NORM, RATE, TRAINED, WORKERS, factor, make_model
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader


class Tiny(L.LightningModule):
    """The model, its loss, optimizer and schedule."""

    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()
        self.seen, self.evaluations = [], []

    def train_dataloader(self):
        # Without a sampler of its own, Lightning would shuffle; here all three scripts read the same samples.
        return StatefulDataLoader(TRAINED, MICROBATCH, sampler=DistributedSampler(TRAINED, shuffle=False))

    def val_dataloader(self):
        return DataLoader(HELD_OUT, BATCH // WORKERS)

    def training_step(self, batch, index):
        inputs, targets = batch
        loss = cross_entropy(self.model(inputs), targets)
        self.log("loss", loss, sync_dist=True)
        self.seen.append(self.all_gather(loss.detach()).mean().item())
        return loss

    def validation_step(self, batch, index):
        inputs, targets = batch
        self.log("eval_loss", cross_entropy(self.model(inputs), targets), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=RATE)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_validation_epoch_end(self):
        self.evaluations.append(self.trainer.callback_metrics["eval_loss"].item())


class ShardedTiny(Tiny):
    """The same with sharded state: FSDP2, in the hook that Lightning has for it."""

    def configure_model(self):
        mesh = self.device_mesh["data_parallel"]
        for layer in self.model[::2]:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)


def train(folder: Path, updates: int, precision: str, resume: bool, sharded: bool) -> None:
    """Train up to a number of updates, counted from the first run on."""
    best = ModelCheckpoint(folder, "best", monitor="eval_loss", enable_version_counter=False)
    last = ModelCheckpoint(folder, "last", every_n_train_steps=1, enable_version_counter=False)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=WORKERS,
        strategy=ModelParallelStrategy(data_parallel_size=WORKERS, tensor_parallel_size=1) if sharded else "ddp",
        max_steps=updates,
        precision=precision,
        accumulate_grad_batches=MICROBATCHES,
        gradient_clip_val=NORM,
        val_check_interval=EVERY * MICROBATCHES,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        callbacks=[] if sharded else [best, last],
        enable_checkpointing=not sharded,
        logger=CSVLogger(folder),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = ShardedTiny() if sharded else Tiny()
    trainer.fit(module, ckpt_path=folder / "last.ckpt" if resume else None)
    if trainer.is_global_zero:
        means = [
            sum(module.seen[k : k + MICROBATCHES]) / MICROBATCHES for k in range(0, len(module.seen), MICROBATCHES)
        ]
        result = {"workers": trainer.world_size, "losses": means, "evaluations": module.evaluations}
        (folder / "losses.json").write_text(json.dumps(result))
        if not sharded:
            save_file(module.model.state_dict(), folder / "model.safetensors")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--precision", choices=("32-true", "bf16-mixed", "16-mixed"), default="32-true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--sharded", action="store_true")
    given = parser.parse_args()
    train(given.folder, given.updates, given.precision, given.resume, given.sharded)
