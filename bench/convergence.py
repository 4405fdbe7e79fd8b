"""Convergence of the weight update rules: one GPT, the same data, and the same samples per update.

    python bench/convergence.py                                     # Adam and two learning rates of SGD
    python bench/convergence.py --optimizer sgd --lr 0.02 [--steps 400] [--rules stashed]

The model has four stages; with waves, one device. All stages run in one process (inline engine), so that only the
update rule differs. Every update averages 16 samples. Rules that update after each microbatch
(stashed, vertical, naive) use one microbatch of 16; all others use four of 4. The script prints the mean loss of every
tenth of the run, and how far the last tenth differs from the synchronous rule.
"""

import argparse
import json
import statistics
from functools import partial

import torch

from hocket.hardware.cluster import Cluster, Level
from hocket.models.gpt import GPT, GPTSizes, language_loss
from hocket.models.text import VOCAB, Text
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job import Job
from hocket.runtime.engine.inline import run_inline
from hocket.runtime.stage.executable import Executable

STAGES, BATCH_SIZE, SEQ, SEED = 4, 16, 64, 0
RUNS = (
    ("sync (flush)", "flush", 4, {}),
    ("delayed (2BW)", "two_bw", 4, {}),
    ("stashed", "pipedream", 16, {}),
    ("vertical", "pipedream", 16, {"vertical_sync": True}),
    ("naive", "pipedream", 16, {"naive": True}),
    ("averaged (tick_tock)", "tick_tock", 4, {}),
)
SETTINGS = (("adam", 3e-4), ("sgd", 0.01), ("sgd", 0.05))
OPTIMIZERS = {"sgd": partial(torch.optim.SGD, momentum=0.9), "adam": torch.optim.Adam}


def make_job(optimizer: str, learning_rate: float) -> Job:
    """A small GPT on real text, with the same weights for every rule."""
    torch.manual_seed(SEED)
    model = GPT(GPTSizes(n_layer=4, d_model=64, n_head=4, seq=SEQ, vocab=VOCAB), tied=False)
    return Job(
        model,
        language_loss,
        Text(SEQ),
        partial(OPTIMIZERS[optimizer], lr=learning_rate),
        BATCH_SIZE,
        name="gpt-convergence",
    )


def run(job: Job, strategy: str, microbatch_size: int, options: dict[str, bool], steps: int) -> list[float]:
    """Mean loss of each tenth of a run."""
    captured = capture(job, microbatch_size)
    names = [layer.name for layer in captured.layers]
    borders = [
        0,
        *(next(i for i, n in enumerate(names) if n.startswith(f"blocks.{b}")) for b in range(1, STAGES)),
        len(names),
    ]
    stages = tuple(PlanStage(tuple(names[borders[s] : borders[s + 1]]), (s,)) for s in range(STAGES))
    if strategy == "tick_tock":
        stages = tuple(PlanStage(tuple(names), (0,), wave=wave) for wave in (0, 1))
    cluster = Cluster("inline", (Level("local", STAGES, 1e9),), "cpu-core")
    plan = Plan(strategy, "gpt-convergence", BATCH_SIZE, microbatch_size, stages, cluster, options)
    program = plan.compile(captured)
    repeats = (steps * plan.microbatches - program.admitted) // program.stride
    losses = [loss for _, loss, _ in run_inline(Executable(captured, plan.layout(captured), program), repeats).losses]
    share = len(losses) // 10
    return [statistics.fmean(losses[k * share : (k + 1) * share]) for k in range(10)]


def compare(optimizer: str, lr: float, steps: int, rules: str) -> None:
    """Print one JSON line per rule."""
    synchronous = None
    for name, strategy, microbatch_size, options in (row for row in RUNS if rules in row[0] or row is RUNS[0]):
        tenths = run(make_job(optimizer, lr), strategy, microbatch_size, options, steps)
        synchronous = synchronous or tenths[-1]
        row = {"rule": name, "optimizer": optimizer, "lr": lr, "loss_by_tenth": [round(x, 4) for x in tenths]}
        print(json.dumps({**row, "last_tenth_beside_sync": round(tenths[-1] - synchronous, 4)}), flush=True)


def main() -> None:
    """Compare the rules for one setting, or for all settings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS))
    parser.add_argument("--lr", type=float)
    parser.add_argument("--rules", default="", help="run only rules with this text in their names, and sync")
    given = parser.parse_args()
    if (given.optimizer is None) != (given.lr is None):
        parser.error("--optimizer and --lr go together")
    torch.set_num_threads(1)
    for optimizer, lr in SETTINGS if given.lr is None else ((given.optimizer, given.lr),):
        compare(optimizer, lr, given.steps, given.rules)


if __name__ == "__main__":
    main()
