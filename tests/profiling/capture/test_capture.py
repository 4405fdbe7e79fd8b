"""Captured models, cut anywhere, compute exactly as the plain model."""

import copy
import dataclasses
import functools
import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from hocket import models
from hocket.errors import CaptureError, InputError
from hocket.profiling.capture.capture import Stage, capture
from hocket.profiling.capture.segmentation import LiveGraph
from hocket.profiling.job.job import Job
from tests.profiling.helpers.splitting import plain, run_stages, stages_of
from tests.tiers import examples

TOLERANCE = 1e-12


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def job_of(model, features=6, classes=3, loss=functional.cross_entropy, samples=12):
    draw = torch.Generator().manual_seed(3)
    data = [(torch.randn(features, generator=draw).double(), torch.tensor(k % classes)) for k in range(samples)]
    return Job(model.double(), loss, data, sgd, 4)


def assert_same(found, expected):
    loss, grads = found
    assert abs(loss - expected[0]) <= TOLERANCE * abs(expected[0])
    assert grads.keys() == expected[1].keys()
    for name, grad in grads.items():
        torch.testing.assert_close(grad, expected[1][name], rtol=TOLERANCE, atol=TOLERANCE, msg=name)


def check(job, sizes=(4, 3), **options):
    """Compare stages of 1 to 4 cuts and of single layers; return the capture."""
    captured = capture(job, **options)
    state = copy.deepcopy(job.model.state_dict())
    for size in sizes:
        here = captured.for_size(size)
        batch = job.batch(range(size))
        expected = plain(job, batch)
        job.model.load_state_dict(state)
        for count in (1, 2, 3, 4, len(here.layers)):
            assert_same(run_stages(here, stages_of(here, count), batch), expected)
    return captured


@pytest.mark.parametrize("name", ["gpt", "lstm", "vgg", "inception", "resnet"])
def test_zoo_parity(name):
    """Loss and gradients of all cuts equal the plain model's.

    The model is cut into 1, 2, 3, 4 and single-layer stages, with a ragged microbatch too.
    """
    options = {"dropout": 0.0} if name in ("vgg", "inception") else {}
    check(models.small_job(name, dtype=torch.float64, batch_size=4, **options))


@pytest.mark.parametrize(
    ("name", "options"),
    [("gpt", {"dropout": 0.2}), ("lstm", {"dropout": 0.2}), ("vgg", {"batch_norm": True}), ("inception", {})],
)
@pytest.mark.thinned(most=2)
def test_dropout_is_the_same_whatever_the_cut_and_recomputed(name, options):
    """With a seed for each layer, masks do not depend on stages or recomputation."""
    job = models.small_job(name, dtype=torch.float64, batch_size=4, **options)
    captured = capture(job, 4)
    assert any(layer.random for layer in captured.layers)
    batch = job.batch(range(4))
    whole = run_stages(captured, stages_of(captured, 1), batch, lambda k: 77 + k)
    other = run_stages(captured, stages_of(captured, 1), batch, lambda k: 78 + k)
    assert whole[0] != other[0]
    for count in (2, 3, len(captured.layers)):
        for recompute in (False, True):
            found = run_stages(captured, stages_of(captured, count), batch, lambda k: 77 + k, recompute)
            assert_same(found, whole)


@functools.cache
def branching():
    job = models.small_job("inception", dtype=torch.float64, dropout=0.0)
    captured, batch = capture(job, 3), job.batch(range(3))
    return captured, batch, run_stages(captured, stages_of(captured, 1), batch)


@examples(15)
@given(st.data())
def test_any_cut_of_a_branching_model(data):
    """Wherever a model with branches and joins is cut, the stages compute the same."""
    captured, batch, expected = branching()
    layers = len(captured.layers)
    ends = sorted(data.draw(st.sets(st.integers(1, layers - 1), max_size=5)))
    stages = [Stage(captured, range(a, b)) for a, b in pairwise([0, *ends, layers])]
    assert_same(run_stages(captured, stages, batch), expected)


def hugging_face(name, attention, dropout=0.0):
    transformers = pytest.importorskip("transformers", reason="the extra `hf` is not installed")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    if name == "gpt2":
        config = transformers.GPT2Config(
            n_layer=2, n_embd=16, n_head=2, n_positions=12, vocab_size=32, attn_implementation=attention,
            resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config).double()
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=32,
        max_position_embeddings=12, attn_implementation=attention, hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config).double()


def token_job(model, mask=False):
    draw = torch.Generator().manual_seed(1)
    data = []
    for _ in range(8):
        tokens = torch.randint(0, 32, (12,), generator=draw)
        data.append({"input_ids": tokens, "labels": tokens})
        if mask:
            data[-1]["attention_mask"] = (torch.arange(12) < torch.randint(6, 12, (1,), generator=draw)).long()
    return Job(model, None, data, sgd, 4)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_hugging_face_parity(name, attention):
    """GPT-2 and BERT with their own loss are cut into layers and stay exact."""
    captured = check(token_job(hugging_face(name, attention)))
    assert len(captured.layers) > 15
    assert captured.ties


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_hugging_face_with_a_mask(name):
    """A padding mask in the batch reaches every layer that needs it."""
    captured = check(token_job(hugging_face(name, "sdpa"), mask=True))
    assert len(captured.layers) > 15


def test_one_sample_has_the_same_layers():
    """A single sample has the same layers, although the model could skip copies."""
    check(token_job(hugging_face("gpt2", "sdpa")), sizes=(1, 2))


def test_hugging_face_dropout():
    """Dropout inside attention is found and seeded."""
    job = token_job(hugging_face("gpt2", "sdpa", dropout=0.2))
    captured = capture(job, 4)
    batch = job.batch(range(4))
    whole = run_stages(captured, stages_of(captured, 1), batch, lambda k: k)
    assert_same(run_stages(captured, stages_of(captured, 4), batch, lambda k: k, recompute=True), whole)


def test_capture_leaves_the_model_as_it_was():
    """Capture leaves weights, gradients, buffers, modes and generators untouched."""
    job = models.small_job("resnet")
    state = copy.deepcopy(job.model.state_dict())
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    capture(job, 4)
    assert torch.equal(torch.rand(3), expected)
    assert job.model.training
    assert all(p.grad is None for p in job.model.parameters())
    assert all(torch.equal(a, state[name]) for name, a in job.model.state_dict().items())
    assert nn.Module.__call__.__name__ == "_wrapped_call_impl"


def test_layers_are_the_same_each_time():
    """Two captures of one model that begin with different sizes have equal layers."""
    job = models.small_job("inception")
    first, second = capture(job, 2), capture(job, 5)
    assert [layer.name for layer in first.layers] == [layer.name for layer in second.layers]
    assert [(t.name, t.source, t.targets) for t in first.tensors] == [
        (t.name, t.source, t.targets) for t in second.tensors
    ]


def test_gpt_layers():
    """Blocks are cut into attention and MLP.

    The residual stream is a tensor that skips a layer, and tied weights are found.
    """
    captured = capture(models.small_job("gpt"))
    names = [layer.name for layer in captured.layers]
    assert "blocks.1.mlp.up" in names
    ends = (captured.index_of("tok"), captured.index_of("head"))
    assert captured.ties == (ends,)
    skips = [t for t in captured.tensors if t.source >= 0 and len(t.targets) == 2]
    assert len(skips) == 4
    assert captured.layers[-1].name == "loss"


def test_inception_branches():
    """Each branch is a separate layer or chain that reads the same tensor.

    The join is a layer that reads all branches.
    """
    captured = capture(models.small_job("inception"))
    forks = [t for t in captured.tensors if len(t.targets) == 4]
    assert len(forks) == 3
    for k, layer in enumerate(captured.layers):
        if layer.kind == "cat" and "mixed.0" in layer.name:
            assert len([t for t in captured.tensors if k in t.targets]) == 4
            break
    else:
        pytest.fail("no join")


def test_fewer_layers():
    """`max_layers` bounds the number of layers; one layer is the whole model."""
    job = models.small_job("resnet", dtype=torch.float64)
    for most in (1, 7, 20):
        captured = check(job, sizes=(4,), max_layers=most)
        assert len(captured.layers) <= most


def test_heavy_layers_stay_alone():
    """Layers of much more than the mean cost are joined last, so that pipelines can be balanced."""
    small = [nn.Linear(8, 8) for _ in range(10)]
    model = nn.Sequential(*small[:5], nn.Linear(8, 4096), nn.Linear(4096, 8), *small[5:])
    data = [(torch.randn(8), torch.randn(8)) for _ in range(8)]
    job = Job(model, nn.functional.mse_loss, data, lambda p: torch.optim.SGD(p, lr=0.1), 8)
    captured = capture(job, max_layers=9)
    assert len(captured.layers) == 9
    own = {name: layer.parameters for layer in captured.layers for name in layer.parameters}
    assert own["5.weight"] == ("5.weight", "5.bias")
    assert own["6.weight"] == ("6.weight", "6.bias")


def test_batch_dimension():
    """The batch dimension is found at any place; a tensor without one is marked."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.mid, self.b = nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)
            self.scale = nn.Parameter(torch.ones(5))

        def forward(self, x):
            y = self.mid(self.a(x).t().contiguous())
            return self.b(y.t() * self.mid(self.scale))

    captured = check(job_of(Model()))
    assert captured.tensor["a"].batch_dim == 1
    assert captured.tensor["mid#2"].batch_dim is None


def test_views_across_a_cut_keep_their_layout():
    """A transposed tensor can be viewed after it was sent as plain numbers."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.mid, self.b = nn.Linear(6, 8), nn.Identity(), nn.Linear(8, 3)

        def forward(self, x):
            y = self.a(x).view(len(x), 2, 4).transpose(1, 2)
            z = self.mid(y) + 0.5
            return self.b(y.transpose(1, 2).view(len(x), 8) + z.sum())

    check(job_of(Model()))


class InPlace(nn.Module):
    """A model with all allowed kinds of writes into tensors."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        x = x.mul_(1.5)
        y = self.relu(self.a(x))
        out = torch.zeros_like(x)
        out[:, 1:] = self.b(y)[:, 1:]
        out[:, 0] += 2
        rows = torch.zeros(len(x), 6, dtype=x.dtype)
        column = rows[:, 1]
        column.add_(y.sum(dim=1))
        twice = y * 2
        left = twice[:, :3]
        left.add_(1.0)
        return self.c(twice + out + rows + left.sum())


def test_in_place():
    """Changes in place are repeated in order and never seen outside.

    Batch tensors, constants and views are changed.
    """
    job = job_of(InPlace())
    captured = check(job)
    batch = job.batch(range(2))
    before = batch["item0"].clone()
    run_stages(captured.for_size(2), stages_of(captured.for_size(2), 2), batch)
    assert torch.equal(batch["item0"], before)


def test_constants_written_to_are_refused():
    """A plain tensor that a forward writes to is hidden state and refused."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.total = nn.Linear(6, 3), torch.zeros(6).double()

        def forward(self, x):
            self.total += x.sum(0)
            return self.a(x) + self.total.sum()

    assert "register_buffer" in refusal(job_of(Model())).next_step


def test_gradient_modes_inside_the_model():
    """Operations without gradients run without them in a stage too."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            y = self.a(x)
            with torch.no_grad():
                target = self.b(y).tanh()
            return self.c(y * target + y.detach())

    check(job_of(Model()))


def test_autocast_inside_the_model():
    """Operations under autocast run under autocast in a stage too."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                y = self.a(x)
                z = (y @ y.t()).sum(0)
            return self.b(y.float()) + z.float()[:, None]

    job = job_of(Model())
    job = dataclasses.replace(job, model=job.model.float(), data=[(x.float(), y) for x, y in job.data])
    captured = check(job)
    assert captured.tensor["a"].dtype is torch.bfloat16


def test_structures_in_and_out_of_modules():
    """Nested tuples, lists, dictionaries and None pass through modules."""

    class Leaf(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(6))

        def forward(self, things, *, extra=None, scale=1.0):
            x, (y, none) = things["x"], things["more"]
            assert none is None
            return {"sum": (x + y * self.w) * scale, "parts": [x - y, extra[0]]}, None

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.leaf, self.b = nn.Linear(6, 6), Leaf(), nn.Linear(6, 3)

        def forward(self, x):
            y = self.a(x)
            out, _ = self.leaf({"x": x, "more": (y, None)}, extra=[y * 2], scale=0.5)
            return self.b(out["sum"] + out["parts"][0] + out["parts"][1])

    check(job_of(Model()))


def test_running_statistics_are_updated_once():
    """A recomputation does not update running statistics; a forward does."""
    job = models.small_job("resnet", dtype=torch.float64)
    captured = capture(job, 4)
    batch = job.batch(range(4))
    (stage,), (again,) = stages_of(captured, 1), stages_of(captured, 1)
    run_stages(captured, [stage], batch)
    run_stages(captured, [again], batch, recompute=True)
    plain(job, batch)
    expected = dict(job.model.named_buffers())
    assert stage.buffers().keys() == expected.keys()
    for name, buffer in expected.items():
        assert torch.equal(stage.buffers()[name], buffer)
        assert torch.equal(again.buffers()[name], buffer)
    assert any(layer.batch_statistics for layer in captured.layers)


def test_frozen_parameters_and_unused_batch_tensors():
    """A frozen parameter gets no gradient; an unused tensor of the batch is noted."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)
            self.a.weight.requires_grad_(False)

        def forward(self, x, unused):
            return self.b(self.a(x))

    data = [(torch.randn(6).double(), torch.zeros(1), torch.tensor(0)) for _ in range(8)]
    job = Job(Model().double(), functional.cross_entropy, data, sgd, 4, inputs=2)
    captured = check(job)
    assert any("item1" in note for note in captured.notes)


class Branching(nn.Module):
    """A model with a branch that depends on its numbers."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return self.a(x) if x.sum() > 0 else self.b(x)


class Around(nn.Module):
    """A model around a child."""

    def __init__(self, child):
        super().__init__()
        self.first, self.child, self.last = nn.Linear(6, 6), child, nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.child(self.first(x)))


def refusal(job):
    with pytest.raises(CaptureError) as caught:
        capture(job)
    return caught.value


def test_data_dependent_control_flow_at_the_root_is_refused():
    """Data-dependent control flow at the root is refused; the error names the module."""
    error = refusal(job_of(Branching()))
    assert error.place == "module (root)"
    assert "__bool__" in error.found


def test_data_dependent_control_flow_in_a_module_is_one_layer():
    """A module with data-dependent control flow is kept whole, with a note."""
    model = Around(Branching())
    job = job_of(model)
    captured = capture(job)
    assert any(layer.name == "child" for layer in captured.layers)
    assert any("child is kept whole" in note for note in captured.notes)


def test_a_model_that_changes_shape_is_refused():
    """A shape that depends on the data differs between two samples."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            y = self.a(x).flatten()
            return self.b(y[y > 0][:, None].expand(-1, 6))

    torch.manual_seed(0)  # with few values, as many may be positive in both samples by chance
    error = refusal(job_of(Model(), loss=lambda out, target: out.square().mean()))
    assert "shape" in error.found


def test_python_randomness_is_refused():
    """A path drawn by Python's own random numbers cannot be planned."""

    class Model(nn.Linear):
        def forward(self, x):
            return super().forward(x) * random.choice([1.0, 1.0])

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = Model(6, 3)

        def forward(self, x):
            return self.a(x)

    assert "random" in refusal(job_of(Outer())).found


def test_parameters_changed_in_place_are_refused():
    """A forward that writes into a parameter is refused."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.count = nn.Linear(6, 3), nn.Parameter(torch.zeros(1))

        def forward(self, x):
            with torch.no_grad():
                self.count.add_(1)
            return self.a(x) + self.count

    assert "count" in refusal(job_of(Model())).found


def test_hidden_parameters_are_refused():
    """A parameter in a plain list is not registered and is refused."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.hidden = nn.Linear(6, 6), [nn.Linear(6, 3).double()]

        def forward(self, x):
            return self.hidden[0](self.a(x))

    assert "gradient" in refusal(job_of(Model())).found


def test_buffers_changed_in_place_and_replaced():
    """A buffer may be changed in place between modules; a replaced one is refused."""

    class Average(nn.Module):
        def __init__(self, replaces):
            super().__init__()
            self.a, self.b, self.replaces = nn.Linear(6, 6), nn.Linear(6, 3), replaces
            self.register_buffer("mean", torch.zeros(6).double())

        def forward(self, x):
            y = self.a(x)
            if self.replaces:
                self.mean = (self.mean * 0.9 + y.mean(0) * 0.1).detach()
            else:
                with torch.no_grad():
                    self.mean.mul_(0.9).add_(y.mean(0) * 0.1)
            return self.b(y + self.mean)

    error = refusal(job_of(Average(True)))
    assert (error.place, error.found) == ("buffer mean", "replaced by another tensor")
    job = job_of(Average(False))
    captured = check(job)
    batch = job.batch(range(4))
    (stage,) = stages_of(captured.for_size(4), 1)
    run_stages(captured.for_size(4), [stage], batch, recompute=True)
    plain(job, batch)
    torch.testing.assert_close(stage.buffers()["mean"], job.model.mean, rtol=1e-12, atol=0)


class Doubling(torch.autograd.Function):
    """A custom autograd function."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Doubled(nn.Module):
    """A model with the custom function and a child."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, x):
        return Doubling.apply(self.a(x))


def test_custom_autograd_functions():
    """Custom autograd functions make a submodule one layer; the root is refused."""
    captured = check(job_of(Around(Doubled())))
    assert any("child is kept whole" in note for note in captured.notes)
    assert "gradient" in refusal(job_of(Doubled(), loss=lambda out, target: out.square().mean())).found


def test_errors_of_the_model_name_the_module():
    """A shape error inside the model is reported with the module's path."""
    error = refusal(job_of(Around(nn.Sequential(nn.Linear(5, 6)))))
    assert "child.0" in error.place


@pytest.mark.parametrize(
    "loss", [lambda out, target: out, lambda out, target: 3.0, lambda out, target: target.sum().double()]
)
def test_losses_that_are_none_are_refused(loss):
    """The loss must be one number that requires a gradient."""
    assert refusal(job_of(nn.Sequential(nn.Linear(6, 3)), loss=loss)).place == "Job.loss"


def test_bad_arguments():
    """Sizes below one are refused, and so is a layer that does not exist."""
    job = job_of(nn.Sequential(nn.Linear(6, 3)))
    for options in ({"microbatch_size": 0}, {"max_layers": 0}):
        with pytest.raises(InputError):
            capture(job, **options)
    with pytest.raises(InputError):
        capture(job).index_of("nothing")


def test_what_nothing_needs_is_left_out():
    """Operations without influence on the loss belong to no layer."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.extra = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x):
            self.extra(x)
            return self.a(x)

    captured = capture(job_of(Model()))
    assert isinstance(captured.graph, LiveGraph)
    assert "extra" not in [layer.name for layer in captured.layers]
