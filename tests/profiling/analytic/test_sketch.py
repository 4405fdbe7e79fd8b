"""Sketched jobs: the measured profile's layers and bytes, torch's operations."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hocket import Job, models
from hocket.errors import CaptureError, InputError
from hocket.profiling.analytic.aten_costs import _FORMULAS, OperatorLog
from hocket.profiling.analytic.fake_tensors import fake_copy, faked
from hocket.profiling.analytic.operators import MemoryPass, Product, flops_of
from hocket.profiling.analytic.sketch import sketch
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job_file import load_job
from hocket.profiling.measure.measure import measure
from hocket.profiling.measure.request import MeasureRequest
from hocket.profiling.profile import ModelProfile


def adam(parameters):
    return torch.optim.Adam(parameters)


def without_seconds(profile: ModelProfile) -> ModelProfile:
    none = (0.0,) * len(profile.microbatch_sizes)
    layers = tuple(
        replace(layer, forward_s=none, backward_s=none, noise_s=(), step_s=0.0, copy_s=0.0) for layer in profile.layers
    )
    return replace(
        profile, layers=layers, whole_forward_s=(), whole_backward_s=(), whole_forward_std_s=(),
        whole_backward_std_s=(), load_s=(), step_call_s=0.0, notes=(), source="", device_type="",
    )  # fmt: skip


class Words:
    """Random words that are their own labels."""

    def __len__(self):
        return 16

    def __getitem__(self, i):
        words = torch.randint(0, 90, (16,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": words, "labels": words}


def of_transformers(name):
    transformers = pytest.importorskip("transformers")
    small = {"vocab_size": 96, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    torch.manual_seed(0)
    match name:
        case "bert":
            sizes = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
            model = transformers.BertForMaskedLM(transformers.BertConfig(max_position_embeddings=16, **sizes, **small))
        case _:
            sizes = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
            model = transformers.LlamaForCausalLM(
                transformers.LlamaConfig(max_position_embeddings=16, num_key_value_heads=2, **sizes, **small)
            )
    return Job(model.train(), None, Words(), lambda p: torch.optim.AdamW(p), 4, name=name)


ZOO = ("gpt", "lstm", "vgg", "inception", "resnet")


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *(pytest.param(name, None, marks=pytest.mark.slow) for name in ("resnet", "bert")),
        *((name, None) for name in ("gpt", "lstm")),
        ("llama", "bfloat16"),
    ],
)
@pytest.mark.thinned(most=1)
def test_layers_and_bytes_are_those_of_a_measured_profile(name, precision):
    """A sketch equals a measured profile exactly, except for seconds.

    Names, graph, parameters, stashes, working bytes, optimizer state, kept tensors and operations are compared.
    """
    job = models.small_job(name, optimizer=adam) if name in ZOO else of_transformers(name)
    job = replace(job, precision=precision)
    sizes = (2, 4) if name == "gpt" else (2,)
    measured = measure(job, sizes, MeasureRequest(budget_s=0.01))
    assert without_seconds(sketch(job, sizes).profile) == without_seconds(measured)


def test_a_model_on_meta_is_sketched_as_one_with_numbers():
    """A model on `meta` has the same layers, bytes, operations and tied weights."""
    job = models.small_job("gpt")
    with torch.device("meta"):
        model = models.GPT(models.GPTSizes(n_layer=2, d_model=32, n_head=2, seq=16))
    found, usual = (sketch(one, (2,)) for one in (replace(job, model=model), job))
    assert without_seconds(found.profile) == without_seconds(usual.profile)
    assert found.work == usual.work
    with pytest.raises(InputError, match=r"^Job\.model: found '.*' on `meta`.*for_type"):
        measure(replace(job, model=model), (2,))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt", "vgg", "resnet"])
@pytest.mark.thinned(most=2)
def test_operations_are_those_that_torch_counts(name):
    """Operations equal torch's count, in forward and backward.

    torch has no formula for attention on a CPU; the formula for other devices is used.
    """
    job = models.small_job(name)
    counter = FlopCounterMode(display=False)
    counter.flop_registry.update(_FORMULAS)
    x, *targets = job.batch(range(4)).values()
    with counter:
        loss = job.loss(job.model(x), *targets)
        forward = counter.get_total_flops()
        loss.backward()
    found = sketch(job, (4,))
    assert sum(flops_of(work.forward) for work in found.work[0]) == forward > 0
    assert sum(flops_of(work.backward) for work in found.work[0]) == counter.get_total_flops() - forward > 0
    assert sum(layer.flops[0] for layer in found.profile.layers) == forward


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d])
def test_operations_of_convolutions_in_groups(kind):
    """Groups divide the channels that an output reads; torch counts so, too."""
    layer = kind(6, 4, 3, stride=2, groups=2)
    x = torch.ones(2, 6, *(7, 9)[: layer.weight.dim() - 2])
    with FlopCounterMode(display=False) as counter:
        layer(x)
    with OperatorLog() as log:
        layer(x)
    assert flops_of(log.found) == counter.get_total_flops() > 0


@pytest.mark.slow
def test_on_a_gpu_adam_steps_all_weights_at_once():
    """With `foreach`, the step needs temporary memory for all weights at once.

    Nothing else changes, and the user's own choice is kept.
    """
    one, all_at_once = (sketch(models.small_job("gpt", optimizer=adam), (2,), foreach=way) for way in (False, True))
    assert not one.profile.step_together
    assert all_at_once.profile.step_together
    for layer in all_at_once.profile.layers:
        assert layer.weights_bytes <= layer.step_bytes <= layer.weights_bytes + 1024, layer.name
    assert without_steps(one.profile) == without_steps(all_at_once.profile)
    assert one.step == all_at_once.step
    chosen = models.small_job("gpt", optimizer=partial(torch.optim.Adam, foreach=False))
    assert sketch(chosen, (2,), foreach=True).profile == one.profile


def without_steps(profile: ModelProfile) -> ModelProfile:
    layers = tuple(replace(layer, step_bytes=0.0) for layer in profile.layers)
    return replace(profile, layers=layers, step_together=False)


def test_recurrent_layers_are_products_of_all_positions_and_of_one_after_the_other():
    """A recurrent layer is one product of all positions and one for each position.

    torch does not count them. The operations equal those of a layer's profile.
    """
    job = models.small_job("lstm")
    found = sketch(job, (4,))
    for layer, work in zip(found.profile.layers, found.work[0], strict=True):
        assert flops_of(work.forward) == layer.flops[0]
        if layer.kind.endswith("LSTM"):
            assert flops_of(work.backward) >= 2 * layer.flops[0] > 0


def log_of(run):
    with faked(), OperatorLog() as log:
        run()
    return log.found


def test_operators_of_single_operations():
    """Views and empty memory cost nothing; copies read one side.

    Convolutions and attention touch each number once.
    """
    assert log_of(lambda: torch.empty(4, 4).view(2, 8).t()) == []
    assert log_of(lambda: torch.zeros(8).fill_(1.0)) == [MemoryPass(32.0), MemoryPass(32.0)]
    assert log_of(lambda: torch.empty(8).copy_(torch.empty(8))) == [MemoryPass(64.0)]
    assert log_of(lambda: torch.empty(8) + torch.empty(1).expand(8)) == [MemoryPass(32.0 + 4.0 + 32.0)]
    x, w = torch.empty(2, 3, 8, 8), torch.empty(6, 3, 3, 3)
    convolved = [Product(2 * 36, 27, 6, 1, 4, "convolution", 1.0, 4.0 * (384 + 162 + 432), "tfloat32")]
    assert log_of(lambda: nn.functional.conv2d(x, w)) == convolved
    q = torch.empty(2, 3, 10, 4)
    attention = nn.functional.scaled_dot_product_attention
    found = log_of(lambda: attention(q, q, q, is_causal=True))
    assert [one.kind for one in found] == ["attention"] * 2
    assert [one.done for one in found] == [0.5, 0.5]
    assert sum(one.moved_bytes for one in found) == 4 * q.numel() * 4
    assert found[0].flops == 2 * 2 * 3 * 10 * 4 * 10


@pytest.mark.slow
def test_a_model_larger_than_memory_is_sketched_from_its_file(tmp_path):
    """A model with over 30 billion parameters is sketched in less than 1 GB."""
    (tmp_path / "job.py").write_text(
        """
import torch
from hocket import Job
from hocket.models.gpt import GPT, GPTSizes, language_loss

class Tokens:
    def __len__(self): return 8
    def __getitem__(self, i): return torch.zeros(1024, dtype=torch.long), torch.zeros(1024, dtype=torch.long)

def make_job():
    model = GPT(GPTSizes(n_layer=2, d_model=36864, n_head=128, seq=1024, vocab=51200)).bfloat16()
    return Job(model, language_loss, Tokens(), lambda p: torch.optim.Adam(p), 8, name="large")
"""
    )
    script = """
import json, sys
from pathlib import Path
from hocket.profiling.analytic.sketch import sketch
found = sketch(sys.argv[1], (1,))
seen = {name: layer for layer in found.profile.layers for name in layer.parameters}
# getrusage would count the memory of the parent at the start of this process.
largest = next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith("VmHWM")) * 1024
stage = sum(layer.weights_bytes for layer in found.profile.layers[:-2])
print(json.dumps([stage, largest, found.profile.dtype]))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "job.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    weights_bytes, largest_bytes, dtype = json.loads(done.stdout)
    assert dtype == "bfloat16"
    assert weights_bytes > 2 * 30e9
    assert largest_bytes < 1e9


def test_a_file_is_run_without_numbers_and_its_plan_is_for_the_model_with_them(tmp_path):
    """The digest of a sketched file equals the real model's.

    A model that needs values during construction is built from real tensors and then sketched.
    """
    text = """
import torch
from hocket import Job, models

class Scaled(torch.nn.Linear):
    def __init__(self, scale):
        super().__init__(8, 8)
        self.rate = {rate}

def make_job():
    inner = models.small_job("gpt")
    torch.manual_seed(0)
    model = torch.nn.Sequential(Scaled(0.5), torch.nn.Linear(8, 4))
    data = [(torch.rand(8), torch.tensor(i % 4)) for i in range(8)]
    return Job(model.double().float(), torch.nn.functional.cross_entropy, data, lambda p: torch.optim.SGD(p, 0.1), 8)
"""
    for name, rate in (("plain", "scale"), ("drawn", "torch.linspace(0, scale, 3)[1].item()")):
        path = tmp_path / f"{name}.py"
        path.write_text(text.replace("{rate}", rate))
        found = sketch(path, (2, 4)).profile
        assert found.digest_of_model == load_job(path).model_digest
        assert [layer.name for layer in found.layers] == [layer.name for layer in capture(load_job(path)).layers]


def test_what_cannot_be_sketched_is_refused_by_name():
    """Refused: operations that depend on numbers, too large sizes, nothing to train."""

    class Looking(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("flag", torch.ones(1))
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x) if self.flag.sum() > 0 else x

    data = [(torch.rand(4), torch.rand(4)) for _ in range(8)]
    job = Job(nn.Sequential(Looking(), nn.Linear(4, 4)), nn.functional.mse_loss, data, adam, 8)
    with pytest.raises(CaptureError, match="module 0"):
        sketch(job, (2,))
    with pytest.raises(InputError, match="batch_size"):
        sketch(models.small_job("gpt"), (16,))
    still = models.small_job("gpt")
    still.model.requires_grad_(False)
    with pytest.raises((InputError, CaptureError)):
        sketch(still, (2,))


def test_a_cast_of_a_fake_module_reaches_all_parts():
    """Parameters and buffers of submodules are cast, and tied weights stay tied."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    model[1][0].weight = model[0].weight
    with faked() as mode:
        twin = fake_copy(model, mode).double()
        assert {t.dtype for t in (*twin.parameters(), *twin.buffers()) if t.is_floating_point()} == {torch.float64}
        assert twin[1][0].weight is twin[0].weight
