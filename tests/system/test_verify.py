"""Verification of plans before a real run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hocket.cli import main
from hocket.errors import InputError
from hocket.planning.plan import Plan
from hocket.training.verify.verify import tolerance_of, verify
from tests.system.tiny import plan, write_job

pytestmark = pytest.mark.workers


@pytest.mark.parametrize(
    "chosen",
    [plan("flush"), plan("pipedream", (3, (0, 1)), (4, (2,))), plan("two_bw")],
    ids=["flush", "pipedream", "two_bw"],
)
@pytest.mark.thinned(most=1)
def test_plans_keep_what_they_declare(tmp_path: Path, chosen: Plan) -> None:
    """Losses and weights of real workers are those of the plain loop under the declared rule, to the tolerance of float64."""
    found = verify(write_job(tmp_path), chosen, steps=4)
    assert found.steps >= 4
    assert found.tolerance == 1e-9
    assert found.good, found
    assert found.rule == {"flush": "sync", "pipedream": "stashed", "two_bw": "delayed"}[chosen.strategy]


SHORT = """
class Short(nn.Module):
    def forward(self, x):
        return torch.tanh(x.float()).to(x.dtype)

# Of this file alone: the tests load it in their own process.
from types import SimpleNamespace
nn = SimpleNamespace(**(vars(nn) | {'Tanh': Short}))
"""


def test_a_model_that_computes_in_a_shorter_type_than_its_weights(tmp_path: Path) -> None:
    """As norms, softmax and losses of Hugging Face do: that type's rounding is allowed, and named; three eighths of a
    gradient round otherwise before such a layer than behind it."""
    found = verify(write_job(tmp_path, start=SHORT), replace(plan("flush"), microbatch_size=3), steps=4)
    assert found.good, found
    assert found.tolerance == 1e-5
    assert "the model computes in float32 between weights of float64" in str(found)
    assert found.weights_error < 1e-12  # scaled where the plan scales it, both round alike


def test_a_difference_is_found(tmp_path: Path) -> None:
    """A job whose data are not the same in every process is caught, with the parameter that differs most."""
    job = write_job(tmp_path, start="torch.manual_seed(0 if RANK == '-' else 1)")
    found = verify(job, plan("gpipe", (7, (0,))), steps=2)
    assert not found.good
    assert found.loss_error > 1e-3
    assert found.weights_error > 1e-3
    assert found.worst


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`hocket verify` prints the comparison and exits with 0 if it is good, and with 1 if not."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    for folder, start, code, word in (
        (good, "", 0, "good"),
        (bad, "torch.manual_seed(0 if RANK == '-' else 1)", 1, "BAD"),
    ):
        plan("flush").save(folder / "plan.yaml")
        assert main(["verify", str(write_job(folder, start=start)), str(folder / "plan.yaml"), "--steps", "2"]) == code
        assert capsys.readouterr().out.startswith(f"{word}: 2 steps against a plain loop")
    assert main(["verify", str(good / "job.py"), str(good / "plan.yaml"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["good"]
    assert found["weights_error"] <= found["tolerance"]


def test_checkpoints_are_its_own(tmp_path: Path) -> None:
    """Options that it decides itself are refused."""
    with pytest.raises(InputError, match="checkpoint"):
        verify(write_job(tmp_path), plan("flush"), checkpoint=str(tmp_path))


def test_tolerance_is_that_of_the_least_exact_type() -> None:
    """Mixed types are compared as their shortest allows."""
    assert tolerance_of({torch.float64}) == 1e-9
    assert tolerance_of({torch.float64, torch.float32}) == 1e-5
    assert tolerance_of({torch.float32, torch.bfloat16}) == pytest.approx(0.078125)


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen",
    [
        plan("flush"),
        plan("flush", (3, (0, 1)), (4, (2,))),
        plan("interleaved", (2, (0,)), (2, (1,)), (1, (0,)), (2, (1,))),
    ],
)
def test_plans_clip_as_one_process_does(tmp_path: Path, chosen: Plan) -> None:
    """Gradients of a job with `clip_grad_norm` are scaled by their norm over all workers, which is far above it here."""
    found = verify(write_job(tmp_path, clip_grad_norm=0.01), chosen, steps=3)
    assert found.good, found


def test_stages_clip_as_the_loop_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PipeDream with unequal replicas clips by the norm of each stage, and the command says so."""
    plan("pipedream", (3, (0, 1)), (4, (2,))).save(tmp_path / "plan.yaml")
    job = write_job(tmp_path, clip_grad_norm=0.01, clip_grad_norm_over="stage")
    assert main(["verify", str(job), str(tmp_path / "plan.yaml"), "--steps", "3"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the update rule stashed, clipping each stage of the plan by its own norm: losses differ" in said


@pytest.mark.parametrize("chosen", [plan("flush"), plan("pipedream"), plan("two_bw")], ids=lambda p: p.strategy)
@pytest.mark.thinned(most=1)
def test_plans_round_as_one_process_does(tmp_path: Path, chosen: Plan) -> None:
    """A job that computes in bfloat16: the tolerance is that type's, and without replicas nothing of it is needed."""
    found = verify(write_job(tmp_path, precision="bfloat16"), chosen, steps=3)
    assert found.tolerance == 10 * torch.finfo(torch.bfloat16).eps
    assert found.loss_error < 1e-6
    assert found.weights_error < 1e-6
