"""A measured profile: complete, scaled to the undivided model, with bytes that add up."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from hocket import models
from hocket.errors import CaptureError, InputError
from hocket.profiling.capture.capture import Stage, capture
from hocket.profiling.capture.storage_tracker import StorageTracker
from hocket.profiling.job.job import Job
from hocket.profiling.measure.measure import measure
from hocket.profiling.measure.memory import count_bytes, seed_of, step_peaks
from hocket.profiling.measure.request import MeasureRequest
from hocket.profiling.measure.timing import deviation
from hocket.profiling.profile import ModelProfile


def adam(parameters):
    return torch.optim.Adam(parameters)


def quick(job, sizes=(1, 2), progress=None):
    return measure(job, sizes, MeasureRequest(budget_s=0.1, progress=progress))


def test_profile_of_a_gpt():
    """A measured GPT has all figures, and survives JSON.

    The layers' times sum up to the undivided model's.
    """
    job = models.small_job("gpt", dropout=0.1, optimizer=adam)
    steps = []
    threads = torch.get_num_threads()
    profile = quick(job, progress=lambda *now: steps.append(now))
    assert torch.get_num_threads() == threads
    assert steps[-1][0] == steps[-1][1]
    assert [s[0] for s in steps] == sorted(s[0] for s in steps)
    assert profile.microbatch_sizes == (1, 2)
    assert profile.optimizer == "Adam"
    assert profile.device_type == "cpu-core"
    assert ModelProfile.from_json(profile.to_json()) == profile
    for k in range(2):
        assert sum(x.forward_s[k] for x in profile.layers) == pytest.approx(profile.whole_forward_s[k])
        assert sum(x.backward_s[k] for x in profile.layers) == pytest.approx(profile.whole_backward_s[k])
    captured = capture(job)
    assert [x.name for x in profile.layers] == [x.name for x in captured.layers]
    assert [(t.name, t.source, t.targets) for t in profile.tensors] == [
        (t.name, t.source, t.targets) for t in captured.tensors
    ]
    up = profile.layers[captured.index_of("blocks.0.mlp.up")]
    weights = (32 * 128 + 128) * 4
    assert (up.weights_bytes, up.gradients_bytes) == (weights, weights)
    assert up.optimizer_bytes == 2 * weights + 2 * 4  # two moments, and a step count per tensor
    assert up.flops == (2 * 16 * 32 * 128, 2 * 2 * 16 * 32 * 128)
    assert up.step_s + profile.step_call_s > 0
    assert len(profile.whole_forward_std_s) == len(profile.whole_backward_std_s) == 2
    assert any("random" in x.notes for x in profile.layers)
    assert all(any("scaled by" in note and f"of {size}:" in note for note in profile.notes) for size in (1, 2))


@pytest.mark.parametrize("name", ["gpt", "lstm", "vgg", "inception", "resnet"])
def test_stashes_sum_up_to_what_the_undivided_model_keeps(name):
    """After a forward, exactly the layers' stashes and the loss are in memory."""
    job = models.small_job(name)
    captured = capture(job, 4)
    batch = {captured.batch_names[key]: value for key, value in job.batch(range(4)).items()}
    layers = range(len(captured.layers))
    counted = count_bytes([Stage(captured, [k]) for k in layers], batch)
    whole = Stage(captured, layers)
    with StorageTracker() as tracker:
        out = whole.run(batch, seed_of)
        kept = tracker.live_bytes
    stash = sum(c.stash for c in counted)
    loss = out["loss"].element_size()
    # Running statistics of batch normalisation are made and dropped; the loss may itself be kept.
    assert stash <= kept <= stash + loss + 8 * len(layers)


def test_working_bytes_of_a_known_layer():
    """A linear layer's working memory is one weight gradient, to be accumulated."""
    job = models.small_job("gpt")
    captured = capture(job, 4)
    batch = {captured.batch_names[key]: value for key, value in job.batch(range(4)).items()}
    counted = count_bytes([Stage(captured, [k]) for k in range(len(captured.layers))], batch)
    up = counted[captured.index_of("blocks.0.mlp.up")]
    assert 32 * 128 * 4 <= up.working <= (32 * 128 + 2 * 128) * 4


def test_the_model_is_not_changed():
    """Measurement trains copies only and restores the random generators."""
    job = models.small_job("resnet")
    state = {name: t.clone() for name, t in job.model.state_dict().items()}
    random_state = torch.get_rng_state()
    quick(job, (2,))
    assert torch.equal(random_state, torch.get_rng_state())
    assert all(torch.equal(t, state[name]) for name, t in job.model.state_dict().items())
    assert all(p.grad is None for p in job.model.parameters())


def test_the_clock_is_an_argument():
    """With a clock that advances by 1 at each read, every layer costs one second."""
    ticks = itertools.count()
    profile = measure(models.small_job("gpt"), (2,), MeasureRequest(clock=lambda: float(next(ticks))))
    assert profile.whole_forward_s == (1.0,)
    assert {round(x.forward_s[0] * len(profile.layers), 9) for x in profile.layers} == {1.0}
    assert all(x.noise_s == (0.0,) for x in profile.layers)
    assert profile.whole_forward_std_s == profile.whole_backward_std_s == ()


def test_deviations_are_told_by_neighbours() -> None:
    """Neighbouring seconds give the deviation despite drift, jumps and disturbances."""
    rng = np.random.default_rng(5)
    seconds = rng.normal(10.0, 0.5, 3000) + np.linspace(0.0, 4.0, 3000)
    seconds[1000:] += 50.0
    assert deviation(seconds.tolist(), [0, 1000, 2000]) == pytest.approx(0.5, rel=0.05)
    seconds[[500, 1500]] += 20.0
    assert deviation(seconds.tolist(), [0, 1000, 2000]) == pytest.approx(0.5, rel=0.1)
    assert deviation([3.0], [0]) == deviation([], []) == deviation([1.0, 5.0], [0, 1]) == 0.0


def test_batch_normalisation_of_one_value():
    """A refused microbatch of one is left out with a note; alone it is an error."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    data = [(torch.randn(3), torch.tensor(k % 2)) for k in range(8)]
    job = Job(model, nn.CrossEntropyLoss(), data, models.sgd, 4)
    profile = quick(job)
    assert profile.microbatch_sizes == (2,)
    assert any("left out" in note for note in profile.notes)
    assert any("batch statistics" in x.notes for x in profile.layers)
    with pytest.raises(CaptureError):
        quick(job, (1,))


def test_bad_arguments():
    """Refused: no usable size, an unknown device, nothing to train."""
    job = models.small_job("gpt")
    with pytest.raises(InputError, match="microbatch_sizes: found 0, 99; expected at least one from 1 to"):
        measure(job, (0, 99))
    if not torch.cuda.is_available():
        with pytest.raises(InputError):
            measure(job, request=MeasureRequest(device="cuda"))


def _two_linear(optimizer):
    """A job of Linear(8, 16) and Linear(16, 4) without biases, on 4 samples; 512 and 256 bytes of weights."""
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 4, bias=False))
    data = torch.utils.data.TensorDataset(torch.randn(8, 8), torch.randint(0, 4, (8,)))
    return Job(model, nn.CrossEntropyLoss(), data, optimizer, 4)


def test_who_keeps_a_tensor_and_what_a_backward_takes():
    """The second layer keeps the first layer's output.

    Its backward allocates the gradients of that output and of its own weight.
    """
    job = _two_linear(lambda p: torch.optim.SGD(p, lr=0.1))
    captured = capture(job, 4)
    stages = [Stage(captured, [k]) for k in range(len(captured.layers))]
    batch = job.batch(range(4))
    batch = {captured.batch_names[key]: value for key, value in batch.items()}
    first, second, _ = count_bytes(stages, batch)
    between = captured.tensors[[t.source for t in captured.tensors].index(0)]
    assert first.keeps == frozenset()
    assert second.keeps == {between.name}
    assert first.stash == 4 * 16 * 4
    assert second.backward == second.fresh == 4 * 16 * 4 + 16 * 4 * 4
    assert (first.backward, first.fresh) == (512, 512)  # images need no gradient


@pytest.mark.parametrize(
    ("optimizer", "together"),
    [
        (lambda p: torch.optim.Adam(p, lr=0.1, foreach=False), False),
        (lambda p: torch.optim.Adam(p, lr=0.1, foreach=True), True),
    ],
)
def test_temporary_memory_of_a_step(optimizer, together):
    """Adam's step needs two temporary tensors of each parameter's size.

    One parameter after the other, or all at once.
    """
    weights = {"a": nn.Parameter(torch.zeros(512)), "b": nn.Parameter(torch.zeros(256))}
    made = optimizer(list(weights.values()))
    for p in weights.values():
        p.grad = torch.ones_like(p)
    made.step()
    peaks, found = step_peaks(made, weights, [["a"], [], ["b"]])
    assert found is together
    assert peaks[1] == 0
    assert peaks[0] >= 512 * 4
    assert peaks[0] == pytest.approx(2 * peaks[2], rel=0.02)


def test_an_optimizer_that_refuses_dense_gradients():
    """SparseAdam gives one error about the optimizer, without a traceback."""
    data = [(torch.tensor([i % 10]), torch.ones(1, 4)) for i in range(8)]
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True))
    job = Job(model, nn.functional.mse_loss, data, lambda params: torch.optim.SparseAdam(params, lr=0.1), 8)
    with pytest.raises(InputError, match="SparseAdam, whose step fails") as caught:
        measure(job, (1,), MeasureRequest(budget_s=1))
    assert caught.value.place == "Job.optimizer"
