"""Training under plans of tensor-parallel groups: checkpoints between plans, traces, names of members, refusals."""

import json
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from hocket.cli import main
from hocket.errors import RefusedError, WorkerLost
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job_file import load_job
from hocket.program.trace.chrome import read_trace
from hocket.training.train import train
from hocket.training.verify.verify import verify
from tests.runtime.helpers.torchrun_workers import two_workers
from tests.system.tiny import Recorder, plan, reference, worker_of, workers_left, write_job

pytestmark = pytest.mark.workers

JOB = """
import torch
from hocket import models

job = models.small_job(
    "gpt", dtype=torch.float64, batch_size=8, samples=50, dropout=0.1,
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
)
"""


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job file of a small GPT."""
    path = tmp_path_factory.mktemp("job") / "job.py"
    path.write_text(JOB)
    return path


def groups(job: Path, depth: int, members: int, replicas: int, strategy: str = "flush") -> Plan:
    """Stages of equal numbers of layers, of so many groups of so many devices each."""
    layers = tuple(layer.name for layer in capture(load_job(job)).layers)
    ends = [len(layers) * s // depth for s in range(depth + 1)]
    stages = tuple(
        PlanStage(layers[ends[s] : ends[s + 1]], tuple(range(s * replicas, (s + 1) * replicas))) for s in range(depth)
    )
    cluster = Cluster("local", (Level("local", depth * members * replicas, 1e9),), "cpu-core")
    return Plan(strategy, "gpt", 8, 2, stages, cluster, tensor=members)


@pytest.mark.slow
def test_checkpoints_move_between_plans(gpt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pipeline and groups, by the command; one process; groups and replicas, on slices of the sequence; back: one run of one
    process's losses."""
    saved, losses = tmp_path / "saved", list[float]()
    first = replace(groups(gpt, 2, 2, 1), slices=True)
    first.save(tmp_path / "plan.yaml")
    options = ["--steps", "2", "--checkpoint", str(saved), "--trace", str(tmp_path / "trace.json"), "--json"]
    assert main(["train", str(gpt), str(tmp_path / "plan.yaml"), *options]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    losses += [line["loss"] for line in lines if "loss" in line]
    assert sorted(lines[-1]["peak_memory_bytes"]) == ["0", "1", "2", "3"]
    along = replace(groups(gpt, 1, 2, 2), sequence_parallel=True)
    for chosen, steps in ((groups(gpt, 1, 1, 1), 4), (along, 6), (first, 8)):
        listener = Recorder()
        train(gpt, chosen, steps=steps, checkpoint=str(saved), resume=True, listener=listener)
        assert listener.first == steps - 2
        losses += listener.losses
    assert losses == pytest.approx(reference(gpt, groups(gpt, 1, 1, 1), 8), rel=1e-8)
    # One track a worker: members of a group do the same, each sends to its counterpart.
    trace = read_trace(tmp_path / "trace.json")
    assert trace.meta["tensor"] == 2
    names = [[(e.lane, e.name) for e in trace.events if e.device == device] for device in range(4)]
    assert names[0]
    assert sorted(names[0]) == sorted(names[1])
    assert sorted(names[2]) == sorted(names[3])
    for event in trace.events:
        if event.kind == "send":
            name, peer = event.name.replace("send", "receive"), (event.device + 2) % 4
            there = [e for e in trace.events if (e.device, e.name) == (peer, name)]
            assert [(e.start_s, e.end_s) for e in there] == [(event.start_s, event.end_s)]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.slow
def test_slices_of_the_sequence(gpt: Path, depth: int) -> None:
    """The losses of one process, dropout and all; the run says what members do together, and nothing of blocks that stay whole."""
    listener = Recorder()
    chosen = replace(groups(gpt, depth, 2, 1), sequence_parallel=True)
    train(gpt, chosen, steps=3, listener=listener)
    assert listener.losses == pytest.approx(reference(gpt, groups(gpt, 1, 1, 1), 3), rel=1e-8)
    notes = [text for text in listener.notes if "block" in text]
    assert notes == [
        "2 blocks are divided over groups of 2 workers: 1 all-reduce, 6 gathers, 4 reduce-scatters forward and "
        "5 all-reduces, 9 gathers, 4 reduce-scatters backward a microbatch"
    ]
    assert [text for text in listener.notes if "vocabulary" in text] == [
        "tok is divided along its vocabulary of 256",
        "head is divided along its vocabulary of 256",
    ]


HUGGING_FACE = """
import torch
import transformers
from torch.nn import functional

import hocket

WORDS = 33
torch.manual_seed(0)
model = {model}.double()
tokens = torch.randint(0, WORDS, (32, 12))


def loss(output, labels):
    return functional.cross_entropy(output.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), label_smoothing=0.1)


job = hocket.Job(
    model, loss, [(t, t) for t in tokens], lambda parameters: torch.optim.Adam(parameters, lr=1e-3), 8, clip_grad_norm=0.5
)
"""
OF_HUGGING_FACE = {
    "gpt2": (
        "transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2, n_embd=16, n_head=4, n_positions=12,"
        " vocab_size=WORDS, bos_token_id=0, eos_token_id=0, use_cache=False))",
        ("transformer.wte", "lm_head"),
    ),
    "bert": (
        "transformers.BertForMaskedLM(transformers.BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=4,"
        " intermediate_size=32, vocab_size=WORDS, max_position_embeddings=12))",
        ("bert.embeddings.word_embeddings", "cls.predictions.decoder"),
    ),
    "llama": (
        "transformers.LlamaForCausalLM(transformers.LlamaConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4,"
        " num_key_value_heads=2, intermediate_size=64, vocab_size=WORDS, max_position_embeddings=12, use_cache=False))",
        ("model.embed_tokens", "lm_head"),
    ),
}


@pytest.mark.parametrize("kind", OF_HUGGING_FACE)
@pytest.mark.slow
def test_models_of_hugging_face(kind: str, tmp_path: Path) -> None:
    """Blocks and vocabulary are divided, of two stages that may share a weight, on slices of the sequence, with dropout and clipping;
    words that the members cannot have equally many of."""
    pytest.importorskip("transformers", reason="the extra `hf` is not installed")
    made, ends = OF_HUGGING_FACE[kind]
    path = tmp_path / "job.py"
    path.write_text(HUGGING_FACE.format(model=made))
    listener = Recorder()
    train(path, replace(groups(path, 2, 2, 1), sequence_parallel=True), steps=3, listener=listener)
    assert listener.losses == pytest.approx(reference(path, groups(path, 1, 1, 1), 3), rel=1e-8)
    assert {text for text in listener.notes if "vocabulary" in text} == {
        f"{end} is divided along its vocabulary of 33" for end in ends
    }
    assert not [text for text in listener.notes if "whole" in text]


def test_blocks_that_stay_whole_are_told(gpt: Path, tmp_path: Path) -> None:
    """A sequence of 15 has no halves: the plain split, with the reason."""
    path = tmp_path / "job.py"
    path.write_text(JOB.replace("dropout=0.1", "dropout=0.1, seq=15"))
    listener = Recorder()
    train(path, replace(groups(path, 1, 2, 1), sequence_parallel=True), steps=2, listener=listener)
    assert listener.losses == pytest.approx(reference(path, groups(path, 1, 1, 1), 2), rel=1e-8)
    assert "blocks.0 works on whole sequences: no dimension of positions that 2 divides" in listener.notes


@pytest.mark.slow
def test_torchrun(gpt: Path, tmp_path: Path) -> None:
    """Members that torchrun started give the same losses."""
    chosen = groups(gpt, 1, 2, 1)
    chosen.save(tmp_path / "plan.yaml")
    words = ["-m", "hocket", "train", str(gpt), str(tmp_path / "plan.yaml"), "--steps", "2", "--json"]
    with two_workers(tmp_path, words) as workers:
        assert [worker.wait() for worker in workers] == [0, 0], [worker.err for worker in workers]
        *steps, last = [json.loads(line) for line in workers[0].out.splitlines()]
    found = [step["loss"] for step in steps if "loss" in step]
    assert found == pytest.approx(reference(gpt, groups(gpt, 1, 1, 1), 2), rel=1e-8)
    assert sorted(last["peak_memory_bytes"]) == ["0", "1"]


@pytest.mark.slow
def test_delayed_updates_of_groups_are_the_declared_ones(gpt: Path) -> None:
    """2BW with groups of two gives losses and weights of a plain loop that applies its rule to the undivided model."""
    found = verify(gpt, groups(gpt, 2, 2, 1, "two_bw"), steps=3)
    assert found.rule == "delayed"
    assert found.good
    assert found.weights_error < 1e-9


@pytest.mark.slow
def test_a_killed_member_is_named(gpt: Path) -> None:
    """Which worker it was, and which member of which group; nobody is left."""
    listener = Recorder(at_step=3, act=lambda: worker_of(3).send_signal(signal.SIGKILL))
    with pytest.raises(WorkerLost) as caught:
        train(gpt, groups(gpt, 2, 2, 1), steps=10**6, listener=listener)
    assert re.match(
        r"worker 3, member 1 of group 1 \(pid \d+\) was killed by signal 9 at step \d+ in", str(caught.value)
    )
    assert workers_left() == []


def test_a_model_that_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    """With the reason, before the first step."""
    chosen = plan("data_parallel", (7, (0, 1)))
    cluster = Cluster("local", (Level("local", 4, 1e9),), "cpu-core")
    listener = Recorder()
    with pytest.raises(RefusedError, match=r"^model: found no repeated module with two linear layers"):
        train(write_job(tmp_path), replace(chosen, tensor=2, cluster=cluster), steps=2, listener=listener)
    assert listener.lines == []
