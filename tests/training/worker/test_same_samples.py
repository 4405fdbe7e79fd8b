"""Every stage of every plan reads the same sample with the same draws.

A run in which this is impossible is refused.
"""

import random
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from hocket.errors import InputError
from hocket.profiling.capture.capture import Captured, capture
from hocket.profiling.data.source import indices_at
from hocket.profiling.job.job import Job
from hocket.runtime.engine.inline import run_inline
from hocket.runtime.kv_exchange import KVExchange
from hocket.runtime.stage.executable import Executable
from hocket.training.train import train
from hocket.training.verify.reference_loop import plain_loop, rule_loop
from hocket.training.worker.same_samples import SAMPLES, Reads
from tests.runtime.checkpoint.test_checkpoint import together
from tests.runtime.helpers.plans import Case, assert_same_losses, assert_same_weights, momentum
from tests.system.tiny import plan, reference, write_job


class Augmented:
    """Data set of 20 samples whose target equals the input.

    Every random generator adds noise to the input. 60 samples are three epochs.
    """

    def __len__(self):
        return 20

    def __getitem__(self, i):
        noise = np.random.randn(4) + [random.gauss(0, 1) for _ in range(4)]
        x = torch.as_tensor(noise) + torch.randn(4, dtype=torch.float64) + i
        return x, x.clone()


def identity():
    layer = nn.Linear(4, 4, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(4))
    return layer


@cache
def graph_of(lr: float) -> Captured:
    """Capture eight identity layers; the loss is the distance to the target."""
    model = nn.Sequential(*(identity() for _ in range(8)))
    step = partial(torch.optim.SGD, lr=lr) if lr == 0 else momentum
    return capture(Job(model, functional.l1_loss if lr else functional.mse_loss, Augmented(), step, 8), 2)


CASES = [
    Case("gpipe", (1, 1)),
    Case("flush", (2, 1), batch_size=7, recompute=True),
    Case("gpipe", (1, 1, 1), microbatch_size=4),
    Case("interleaved", (1, 1), rounds=2),
    Case("fully_sharded", (2,), rounds=2, shard="full"),
    Case("burst_parallel", (4, 2, 1)),
    Case("waves", (1, 1), rounds=2),
    Case("pipedream", (2, 1), batch_size=4, microbatch_size=4),
    Case("two_bw", (1, 1)),
    Case("tick_tock", (2,)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_inputs_and_targets_are_of_one_draw(case):
    """Inputs and targets come from one draw.

    Under every strategy, the loss of an identity model is 0 in each epoch.
    """
    graph = graph_of(0.0)
    program = case.plan(graph).compile(graph)
    result = run_inline(Executable(graph, case.plan(graph).layout(graph), program), 8)
    assert result.position > 20
    assert {loss for _, loss, _ in result.losses} == {0.0}


@pytest.mark.parametrize("case", CASES[:2], ids=str)
def test_draws_are_those_of_a_plain_loop(case):
    """The draws equal those of a plain loop.

    Losses and weights equal the loop by rule, a loop in plain torch and a run in two segments.
    """
    graph = graph_of(0.1)
    plan = case.plan(graph)
    program = plan.compile(graph)
    steps = 8
    whole = run_inline(Executable(graph, plan.layout(graph), program), steps)
    expected = rule_loop(graph, plan, program.rule, steps * plan.microbatches)
    assert_same_losses(whole.losses, expected.losses, 1e-9)
    assert_same_weights({n: t for own in whole.weights.values() for n, t in own.items()}, expected.weights, 1e-9)
    assert_same_weights(plain_loop(graph.job, plan.batch_size, steps).weights, expected.weights, 1e-9)
    half = run_inline(Executable(graph, plan.layout(graph), program), steps // 2)
    rest = run_inline(Executable(graph, plan.layout(graph), program), steps // 2, half.position, half.devices)
    assert [loss for _, loss, _ in (*half.losses, *rest.losses)] == [loss for _, loss, _ in whole.losses]


def small_job(label=lambda i: i % 4) -> Job:
    data = type("D", (), {"__len__": lambda s: 4 * SAMPLES, "__getitem__": lambda s, i: (torch.zeros(3), label(i))})()
    return Job(nn.Linear(3, 4), functional.cross_entropy, data, momentum, 4)


def test_what_workers_read_is_compared():
    """Samples that workers read are compared at the end of a segment.

    Labels that differ on one worker, far behind the first sample, are found on every worker.
    """
    plain = small_job()
    odd = indices_at(SAMPLES + 70, 1, plain.samples, plain.seed)[0]
    other = small_job(lambda i: (i + (i == odd)) % 4)

    def work(jobs, board):
        reads = Reads(jobs[board.rank], board)
        for start in (0, SAMPLES):
            reads.begin(start)
            for position in range(start, start + 100, 10):
                if board.rank != 2:  # which loads nothing
                    reads.take(position, jobs[board.rank].batch_at(position, 10))
            reads.compare()
        return start

    assert together(3, partial(work, (plain, plain, plain))) == [SAMPLES] * 3
    for error in together(3, partial(work, (plain, other, plain))):
        assert isinstance(error, InputError)
        assert error.place == f"Job.data[{odd}]"
        assert error.found == "other values of item1 on worker 1 than on worker 0"


def test_only_the_first_samples_of_a_segment_are_kept():
    """However long a segment is, what is kept of it is bounded, to the sample."""
    job = small_job()
    reads = Reads(job, KVExchange(None, 0, 1))
    reads.begin(8)
    for position in range(8, 4 * SAMPLES, 24):
        reads.take(position, job.batch_at(position, 24))
    assert sorted(reads._found) == list(range(8, 8 + SAMPLES))


def test_data_that_each_worker_makes_otherwise_are_refused_before_the_first_step():
    """Every worker alone reads the same twice; they learn of each other what differs."""
    jobs = [small_job(lambda i, k=k: (i + k) % 4) for k in range(2)]
    for error in together(2, lambda board: Reads(jobs[board.rank], board)):
        assert isinstance(error, InputError)
        assert error.found == "other values of item1 on worker 1 than on worker 0"
        assert "seed its construction there" in error.next_step


@pytest.mark.workers
def test_a_run_under_a_pipeline_with_augmentation(tmp_path):
    """A pipeline run with augmentation has the draws of the inline engine.

    If the data of one rank differ late in the run, the run ends in an error. A label that is no class also gives an
    error. The error names the sample once.
    """
    noise = (
        "import numpy as np; return self.x[i] + float(np.random.rand()), (self.y[i] + int(np.random.randint(3))) % 3"
    )
    job = write_job(tmp_path, trouble=noise)
    assert train(job, plan("flush"), steps=9).losses == pytest.approx(reference(job, plan("flush"), 9), rel=1e-9)
    job = write_job(tmp_path, trouble="return self.x[i], (self.y[i] + (self.taken > 40 and RANK == '1')) % 3")
    with pytest.raises(InputError, match=r"Job.data\[\d+\]: found other values of item1 on worker 1 than on worker 0"):
        train(job, plan("flush"), steps=9, checkpoint=tmp_path / "saved", every=9)
    assert not list((tmp_path / "saved").glob("step-*"))
    job = write_job(tmp_path, trouble="return self.x[i], self.y[i] + 7 * (i == 20)")
    with pytest.raises(InputError) as caught:
        train(job, replace(plan("flush"), microbatch_size=4), steps=9)
    assert (caught.value.place, caught.value.found[2:12]) == ("Job.data[20]", "in item1 (")
    assert str(caught.value).count("is out of bounds") == 1
