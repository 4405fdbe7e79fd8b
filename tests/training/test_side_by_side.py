"""Scripts of examples/side_by_side: Hocket, Accelerate and Lightning train alike, and the page shows lines of these scripts."""

import json
import os
import re
import runpy
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from hocket import export_weights, list_checkpoints
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.job.job_file import load_job
from hocket.training.train import train
from tests.paths import EXAMPLES, ROOT
from tests.runtime.helpers.exported import tensors_in
from tests.system.tiny import Recorder

SCRIPTS = EXAMPLES / "side_by_side"
PAGE = ROOT / "docs" / "explanation" / "side-by-side.md"
TINY = runpy.run_path(str(SCRIPTS / "tiny.py"))
LAYERS = ("0", "1", "2", "3", "4", "loss")
FIRST, UPDATES = 6, 15  # the first run ends in the middle of an epoch of 10 updates

DATA_PARALLEL = Plan(
    "data_parallel",
    "tiny",
    TINY["BATCH"],
    TINY["MICROBATCH"],
    (PlanStage(LAYERS, (0, 1)),),
    Cluster("two", (Level("machine", 2, 1e9),), "cpu-core"),
)
PIPELINE = replace(DATA_PARALLEL, strategy="flush", stages=(PlanStage(LAYERS[:2], (0,)), PlanStage(LAYERS[2:], (1,))))
SHARDED = replace(DATA_PARALLEL, shard="full")


@pytest.fixture(scope="module")
def plain() -> tuple[list[float], list[float]]:
    """Losses of each update and of each evaluation, of a plain loop in one process."""
    model = TINY["make_model"]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=TINY["RATE"])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, TINY["factor"])
    x, y = (torch.stack(column) for column in zip(*TINY["TRAINED"], strict=True))
    held_x, held_y = (torch.stack(column) for column in zip(*TINY["HELD_OUT"], strict=True))
    losses, evaluations = [], []
    for update in range(UPDATES):
        at = update * TINY["BATCH"] % len(x)
        rows = slice(at, at + TINY["BATCH"])
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), TINY["NORM"])
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if (update + 1) % TINY["EVERY"] == 0:
            with torch.no_grad():
                evaluations.append(torch.nn.functional.cross_entropy(model(held_x), held_y).item())
    return losses, evaluations


@pytest.mark.workers
@pytest.mark.slow
@pytest.mark.parametrize("resumed", [PIPELINE, SHARDED], ids=["pipeline", "sharded"])
def test_hocket_trains_as_a_plain_loop(plain: tuple[list[float], list[float]], resumed: Plan, tmp_path: Path) -> None:
    """Data parallel, then resumed in the middle of an epoch under another plan. The best checkpoint is kept and exported."""
    job = SCRIPTS / "on_hocket.py"
    saved = tmp_path / "saved"
    first = train(job, DATA_PARALLEL, steps=FIRST, checkpoint=saved, listener=Recorder())
    rest = train(job, resumed, steps=UPDATES, checkpoint=saved, resume=True, listener=Recorder())
    assert [*first.losses, *rest.losses] == pytest.approx(plain[0], rel=1e-5)
    found = {one.step: one.loss for one in (*first.evaluations, *rest.evaluations)}
    assert [found[4], found[8], found[12]] == pytest.approx(plain[1], rel=1e-5)
    (best,) = [one for one in list_checkpoints(saved) if one.best]
    assert best.step == min(found, key=lambda step: found[step])
    export_weights(saved / best.name, tmp_path / "weights")
    assert sorted(tensors_in(tmp_path / "weights")) == sorted(TINY["make_model"]().state_dict())


@pytest.mark.workers
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_hocket_trains_in_mixed_precision(
    plain: tuple[list[float], list[float]], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment variable sets the precision; the first losses are near those in float32, and not equal."""
    monkeypatch.setenv("PRECISION", precision)
    assert load_job(SCRIPTS / "on_hocket.py").precision == precision
    run = train(SCRIPTS / "on_hocket.py", DATA_PARALLEL, steps=FIRST, listener=Recorder())
    assert run.losses[0] == pytest.approx(plain[0][0], rel=0.01)
    assert run.losses[-1] < 0.8 * run.losses[0]
    assert list(run.losses) != pytest.approx(plain[0][:FIRST], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["accelerate", "lightning"])
def test_the_others_train_as_a_plain_loop(plain: tuple[list[float], list[float]], library: str, tmp_path: Path) -> None:
    """Two processes, resumed in the middle of an epoch."""
    needs = {"accelerate": ("accelerate", "tensorboard"), "lightning": ("lightning", "torchdata", "safetensors")}[
        library
    ]
    missing = [name for name in needs if find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    start = {"accelerate": ["-m", "torch.distributed.run", "--nproc-per-node", "2"], "lightning": []}[library]
    words = [sys.executable, *start, str(SCRIPTS / f"on_{library}.py"), "--folder", str(tmp_path)]
    first = run_script([*words, "--updates", str(FIRST)], tmp_path)
    rest = run_script([*words, "--updates", str(UPDATES), "--resume"], tmp_path)
    assert first["workers"] == rest["workers"] == 2
    assert first["losses"] == pytest.approx(plain[0][:FIRST], rel=1e-5)
    assert rest["losses"][-(UPDATES - FIRST) :] == pytest.approx(plain[0][FIRST:], rel=1e-5)
    assert rest["evaluations"][-2:] == pytest.approx(plain[1][-2:], rel=1e-5)
    if library == "lightning":
        sharded = run_script([*words, "--updates", str(UPDATES), "--sharded"], tmp_path)
        assert sharded["losses"] == pytest.approx(plain[0], rel=1e-5)


def run_script(words: list[str], folder: Path) -> dict[str, Any]:
    """Run a script; return what it wrote to losses.json."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / "losses.json").read_text())
    return found


def rows() -> list[tuple[str, str]]:
    """Library and inline code of each row that shows lines of a script."""
    found = re.findall(r"^\| (Hocket|Accelerate|Lightning) \| (.*?) \|", PAGE.read_text(), re.M)
    return [(name, code) for name, cell in found for code in re.findall(r"`([^`]+)`", cell)]


def test_lines_on_the_page_stand_in_the_scripts() -> None:
    """Code in the column "in the script" is code of the library's script, but for white space."""
    shown = rows()
    assert {name for name, _ in shown} == {"Hocket", "Accelerate", "Lightning"}
    text = {name: "".join((SCRIPTS / f"on_{name.lower()}.py").read_text().split()) for name, _ in shown}
    assert [(name, code) for name, code in shown if "".join(code.split()) not in text[name]] == []
