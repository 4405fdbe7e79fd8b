"""Estimated profile of a sketched job on a device type.

It agrees with the analytic profile of the same sizes, and plans can be made from it.
"""

from dataclasses import replace

import pytest
import torch

from hocket import Job
from hocket.cost.analytic.from_operators import costed
from hocket.cost.analytic.transformer import Precision, analytic
from hocket.cost.kernels import operator_s, seconds
from hocket.errors import InputError
from hocket.hardware.catalog import device_type
from hocket.hardware.cluster import Cluster, Level
from hocket.models.gpt import GPT, GPTSizes, language_loss
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.analytic.operators import MemoryPass, Product
from hocket.profiling.analytic.sketch import sketch
from hocket.profiling.analytic.transformer import Transformer
from hocket.profiling.profile import ModelProfile

A100 = device_type("a100-80gb")
LAYERS, HIDDEN, HEADS, SEQUENCE, WORDS = 2, 2048, 16, 1024, 32000


class Tokens:
    """Samples of one length."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(SEQUENCE, dtype=torch.long), torch.zeros(SEQUENCE, dtype=torch.long)


def make_job() -> Job:
    """A GPT in 16 bits."""
    model = GPT(GPTSizes(LAYERS, HIDDEN, HEADS, SEQUENCE, WORDS)).bfloat16()
    return Job(model, language_loss, Tokens(), lambda p: torch.optim.Adam(p), 8, name="gpt")


@pytest.fixture(scope="module")
def sketched(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """Sketch of the job: its file is run on fake tensors."""
    path = tmp_path_factory.mktemp("job") / "job.py"
    path.write_text(f"from {__name__} import make_job")
    return sketch(path, (1, 4))


def by_sizes(causal: bool) -> ModelProfile:
    """Analytic profile of the same model.

    Gradients are added to those of earlier microbatches: two reads, one write.
    """
    sizes = Transformer(
        "gpt",
        LAYERS,
        HIDDEN,
        HEADS,
        WORDS,
        SEQUENCE,
        dropout=False,
        fused_attention=True,
        fused_passes=False,
        causal=causal,
    )
    return analytic(sizes, A100, precision=Precision("bfloat16", 2, 2, 4, 34, 6), microbatch_sizes=(1, 4))


def in_blocks(profile: ModelProfile, name: str, k: int) -> float:
    """Sum of a figure over the model's blocks."""
    return sum(float(getattr(x, name)[k]) for x in profile.layers if x.name.startswith("block"))


@pytest.mark.slow
def test_a_gpt_is_what_its_sizes_say(sketched) -> None:  # type: ignore[no-untyped-def]
    """The profile of a GPT agrees with the analytic model.

    Parameters and operations agree exactly, stashes except for the statistics of normalisations, and seconds within 7
    %: biases are part of the products, and their gradients are sums.
    """
    found, known = costed(sketched, A100), by_sizes(causal=True)
    # The field counts what lies ahead of a position, too; the analytic planner leaves it out.
    assert sum(x.flops[1] for x in found.layers) == sum(x.flops[1] for x in by_sizes(causal=False).layers)
    tied = WORDS * HIDDEN * 2
    assert sum(x.weights_bytes for x in found.layers) - tied == sum(x.weights_bytes for x in known.layers) - tied
    for k in (0, 1):
        assert in_blocks(found, "stash_bytes", k) == pytest.approx(in_blocks(known, "stash_bytes", k), rel=1e-3)
        assert in_blocks(found, "forward_s", k) == pytest.approx(in_blocks(known, "forward_s", k), rel=0.07)
        assert in_blocks(found, "backward_s", k) == pytest.approx(in_blocks(known, "backward_s", k), rel=0.07)


def test_it_is_a_profile_like_any_other(sketched) -> None:  # type: ignore[no-untyped-def]
    """The profile is saved, read and planned with; faster devices take less time."""
    found = costed(sketched, A100)
    assert found.device_type == "a100-80gb"
    assert found.source.startswith("worked out")
    assert ModelProfile.from_json(found.to_json()) == found
    servers = Cluster("four", (Level("server", 4, 3e11, 1e-5),), "a100-80gb")
    assert search(found, servers, PlanRequest(8)).best.iteration_s > 0
    other = costed(sketched, device_type("h100"))
    assert other.step_call_s > 0
    for slow, quick in zip(found.layers, other.layers, strict=True):
        assert slow.step_s >= quick.step_s
        assert slow.forward_s[1] >= quick.forward_s[1] > 0
    with pytest.raises(InputError, match="bfloat16"):
        costed(sketched, device_type("v100-32gb"))


def test_seconds_of_an_operator() -> None:
    """Half of the operations take half the time.

    TensorFloat-32 has its own rate, or that of float32 on a device without one.
    """
    whole = Product(4096, 4096, 4096, dtype="float32")
    assert operator_s(replace(whole, done=0.5), A100, "") == pytest.approx(operator_s(whole, A100, "") / 2)
    short = replace(whole, dtype="tfloat32")
    assert operator_s(short, A100, "float32") < operator_s(whole, A100, "float32")
    v100 = device_type("v100-32gb")
    assert operator_s(short, v100, "float32") == operator_s(whole, v100, "float32")
    assert seconds((MemoryPass(0.0), MemoryPass(0.0)), A100, "float32") == 2 * A100.launch_s
