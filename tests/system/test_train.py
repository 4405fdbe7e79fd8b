"""Training with real workers: losses, segments, resuming under the same and under other plans, and what does not fit."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hocket.errors import InputError
from hocket.planning.plan import Plan, Predicted
from hocket.planning.predict.predict import predict_iteration
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.job.job import Job
from hocket.profiling.job.job_file import load_job
from hocket.profiling.job.learning_rate.named_schedules import NamedSchedule
from hocket.program.trace.chrome import read_trace
from hocket.program.trace.usage import usage
from hocket.runtime.checkpoint.checkpoint import names_in, newest
from hocket.runtime.kv_exchange import KVExchange
from hocket.training.train import train
from tests.system.tiny import LAYERS, Recorder, plan, reference, write_job

pytestmark = pytest.mark.workers


def run(job: Path | Job, chosen: Plan, **options: Any) -> Recorder:
    """Train; what was heard."""
    listener = Recorder()
    summary = train(job, chosen, listener=listener, **options)
    assert list(summary.losses) == listener.losses
    assert not summary.stopped
    return listener


def test_losses_pace_and_trace(tmp_path: Path) -> None:
    """Every step's loss is the reference's; the summary has the pace and each device's peak; the trace opens and is complete."""
    job, trace = write_job(tmp_path), tmp_path / "trace.json"
    chosen, listener = plan("flush"), Recorder()
    summary = train(job, chosen, steps=6, trace=str(trace), listener=listener)
    assert listener.losses == reference(job, chosen, 6)
    assert [(line["step"], line["samples"]) for line in listener.lines] == [(k, 8 * k) for k in range(1, 7)]
    assert summary.steps == 6
    assert summary.iteration_s is not None
    assert summary.iteration_s > 0
    assert summary.samples_per_s == pytest.approx(8 / summary.iteration_s)
    assert sorted(summary.peak_memory_bytes) == [0, 1]
    assert chosen.trace_meta.items() <= read_trace(trace).meta.items(), "the trace says which plan ran"
    assert read_trace(trace).meta["peak_memory_bytes"] == {
        str(device): peak for device, peak in summary.peak_memory_bytes.items()
    }
    looked_at = usage(read_trace(trace))  # its memory: of the last iteration whose operations were looked at
    for device, peak in summary.peak_memory_bytes.items():
        assert 0 < looked_at.kept_bytes(device) < looked_at.peak_bytes(device) <= peak
    names = [event.get("name") for event in json.loads(trace.read_text())["traceEvents"]]
    assert all(f"backward {stage} #{m}" in names for stage in (0, 1) for m in range(24))
    assert [path.name for path in tmp_path.glob(".*")] == []


@pytest.mark.slow
def test_workers_that_are_no_forks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where systems do not fork what has loaded torch, each worker is a process of its own, and does the same."""
    job, chosen = write_job(tmp_path), plan("gpipe", (7, (0,)))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "elsewhere")
        listener = run(job, chosen, steps=2)
    assert listener.losses == reference(job, chosen, 2)


def test_the_trace_is_of_every_segment(tmp_path: Path) -> None:
    """With a checkpoint after every second step the trace has every step's instructions, once, in the order of the run."""
    job, trace = write_job(tmp_path), tmp_path / "trace.json"
    train(job, plan("flush"), steps=6, trace=str(trace), checkpoint=tmp_path / "saved", every=2)
    found = read_trace(trace)
    for stage in (0, 1):
        forwards = [e.index for e in found.events if (e.kind, e.stage) == ("forward", stage)]
        assert forwards == list(range(24))
        assert [e.index for e in found.events if (e.kind, e.stage) == ("step", stage)] == list(range(6))
    names = [(e.device, e.lane, e.name) for e in found.events]
    assert len(set(names)) == len(names)
    assert len(found.segments_s) == 3
    firsts = [min(e.start_s for e in found.events if e.kind == "forward" and e.index == 8 * k) for k in range(3)]
    assert all(begun <= first for begun, first in zip(found.segments_s, firsts, strict=True))
    assert all(first < begun for first, begun in zip(firsts, found.segments_s[1:], strict=False))


def test_a_run_with_nothing_to_do_leaves_the_trace(tmp_path: Path) -> None:
    """Repeating a finished command keeps the trace of its run, and says so."""
    job, trace = write_job(tmp_path), tmp_path / "trace.json"
    options = {"steps": 2, "trace": str(trace), "checkpoint": tmp_path / "saved"}
    run(job, plan("flush"), **options)
    before = trace.read_bytes()
    again = run(job, plan("flush"), **options, resume=True)
    assert trace.read_bytes() == before
    assert "2 steps are trained already: nothing to do" in again.notes
    assert f"no trace is written: a trace in {trace} remains as it is" in again.notes


def test_resume_is_bit_for_bit_and_two_runs_in_a_row_agree(tmp_path: Path) -> None:
    """Segments, a resume and a second run change no bit of a synchronous run with a schedule; only the last three checkpoints stay."""
    schedule = {"name": "cosine", "steps": 10, "warmup_steps": 3}
    job, chosen, folder = write_job(tmp_path, lr_schedule=schedule), plan("flush"), tmp_path / "saved"
    first = run(job, chosen, steps=5, checkpoint=folder, every=1)
    assert names_in(folder) == ["step-00000003", "step-00000004", "step-00000005"]
    second = run(job, chosen, steps=8, checkpoint=folder, resume=True)
    assert second.first == 5
    assert first.losses + second.losses == reference(job, chosen, 8)
    rates = [[0.01 * NamedSchedule.read(schedule).factor(step, 0.01)] for step in range(8)]
    assert [line["lr"] for line in first.lines + second.lines] == rates
    assert run(job, chosen, steps=8, checkpoint=folder, resume=True).notes == [
        "8 steps are trained already: nothing to do"
    ]


@pytest.mark.slow
def test_two_waves_go_on_from_their_mean(tmp_path: Path) -> None:
    """With a checkpoint, of one model, the rule begins anew: a resume is the same to the bit as a run that only saves; and any other
    plan goes on from it."""
    job, chosen = write_job(tmp_path), plan("tick_tock", (7, (0, 1)))
    whole = run(job, chosen, steps=8, checkpoint=tmp_path / "whole", every=4)
    first = run(job, chosen, steps=4, checkpoint=tmp_path / "saved", every=4)
    assert first.losses == reference(job, chosen, 4)
    again = run(job, chosen, steps=8, checkpoint=tmp_path / "saved", every=4, resume=True)
    assert first.losses + again.losses == whole.losses
    assert any("each with gradients of which half were computed on the other's weights" in note for note in whole.notes)
    other = run(job, plan("data_parallel", (7, (0, 1))), steps=9, checkpoint=tmp_path / "saved", resume=True)
    assert other.first == 8


@pytest.mark.parametrize(
    "other",
    [
        plan("gpipe", (7, (0,))),
        plan("flush", (2, (0,)), (2, (1,)), (3, (2,))),
        plan("data_parallel", (7, (0, 1))),
    ],
    ids=["one-worker", "deeper", "replicas"],
)
@pytest.mark.thinned(most=1)
def test_resume_under_another_plan(tmp_path: Path, other: Plan) -> None:
    """A checkpoint of two stages goes on with other depths, strategies and numbers of workers, as if nothing had changed."""
    job, folder = write_job(tmp_path), tmp_path / "saved"
    run(job, plan("flush"), steps=3, checkpoint=folder)
    resumed = run(job, other, steps=6, checkpoint=folder, resume=True)
    assert any("under another plan" in note for note in resumed.notes)
    assert resumed.losses == pytest.approx(reference(job, plan("flush"), 6)[3:], rel=1e-9)


HOOKED = """
def hooked(parameters):
    made = torch.optim.Adam(parameters, lr=0.01)
    made.register_step_post_hook(lambda *_: None)
    return made
torch.optim.Hooked = hooked
"""


def test_a_torn_checkpoint_is_skipped(tmp_path: Path) -> None:
    """With the newest one damaged, going on begins at the one before, says so, and gives the same losses; that an optimizer has hooks is
    said, too, and no rate is shown that they may change."""
    job, chosen, folder = write_job(tmp_path, HOOKED, optimizer="Hooked(p)"), plan("flush"), tmp_path / "saved"
    run(job, chosen, steps=4, checkpoint=folder, every=2)
    (folder / "step-00000004" / "worker-1.safetensors").write_bytes(b"torn")
    resumed = run(job, chosen, steps=5, checkpoint=folder, resume=True)
    assert resumed.first == 2
    assert "step-00000004 is damaged" in resumed.notes[0]
    assert any("step hooks" in note and "not in the checkpoint" in note for note in resumed.notes)
    assert not any("lr" in line for line in resumed.lines)
    assert resumed.losses == reference(job, chosen, 5)[2:]


def test_resume_without_a_checkpoint(tmp_path: Path) -> None:
    """To go on from an empty folder is refused, and with "auto" begins at step 0 and says so."""
    job, one, folder = write_job(tmp_path), plan("gpipe", (7, (0,))), tmp_path / "saved"
    folder.mkdir()
    with pytest.raises(InputError, match=r"found an empty folder; expected a checkpoint to resume from"):
        train(job, one, steps=1, checkpoint=folder, resume=True)
    fresh = run(job, one, steps=1, checkpoint=folder, resume="auto")
    assert fresh.notes[0] == f"no checkpoint in {folder}: starting from step 0"
    assert run(job, one, steps=2, checkpoint=folder, resume="auto").first == 1


def test_steps_that_a_program_cannot_express(tmp_path: Path) -> None:
    """An asynchronous program with a prologue trains at least as many steps as asked for, and says how many."""
    job, chosen = write_job(tmp_path), plan("pipedream", (3, (0, 1, 2)), (4, (3,)))
    listener = run(job, chosen, steps=1)
    trained = len(listener.lines)
    assert trained > 1
    assert any(note.startswith(f"{trained} steps instead of 1") for note in listener.notes)
    assert any(note.startswith("a step is 8 samples; pipedream ") for note in listener.notes)
    assert listener.losses == pytest.approx(reference(job, chosen, trained), rel=1e-12)


def test_a_plan_that_was_edited_is_predicted_afresh(tmp_path: Path) -> None:
    """The measurement is laid beside what the plan as it stands does; the checkpoint is one of the plan as it is written."""
    made = chain(7, forward_s=0.01, backward_s=0.02, device_type="cpu-core")
    layers = tuple(replace(layer, name=name) for layer, name in zip(made.layers, LAYERS, strict=True))
    profile = replace(made, layers=layers)
    profile.save(tmp_path / "profile.json")
    written = replace(plan("gpipe", (7, (0,))), profile="profile.json", predicted=Predicted(99.0, 1.0, {0: 1.0}))
    written.save(tmp_path / "plan.yaml")
    job, listener, folder = write_job(tmp_path), Recorder(), tmp_path / "saved"
    summary = train(job, tmp_path / "plan.yaml", steps=1, checkpoint=folder, listener=listener)
    assert summary.predicted_iteration_s == predict_iteration(written, profile).iteration_s
    assert [note for note in listener.notes if "was changed after its prediction" in note]
    assert not any("another plan" in note for note in run(job, written, steps=2, checkpoint=folder, resume=True).notes)


def test_a_folder_with_another_runs_checkpoints(tmp_path: Path) -> None:
    """Checkpoints that are there are neither mixed with new ones nor removed."""
    job, folder = write_job(tmp_path), tmp_path / "saved"
    (folder / "step-00000009").mkdir(parents=True)
    with pytest.raises(InputError, match="--resume"):
        train(job, plan("gpipe", (7, (0,))), steps=1, checkpoint=folder)
    assert names_in(folder) == ["step-00000009"]


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    """A checkpoint whose tensors do not fit is refused by name."""
    folder, one = tmp_path / "saved", plan("gpipe", (7, (0,)))
    run(write_job(tmp_path), one, steps=1, checkpoint=folder)
    other = tmp_path / "other.py"
    other.write_text(
        (tmp_path / "job.py")
        .read_text()
        .replace("Linear(6, 8)", "Linear(6, 9)")
        .replace("Linear(8, 8)", "Linear(9, 8)")
    )
    with pytest.raises(InputError, match=r"0\.weight.*\(8, 6\).*expected \(9, 6\)"):
        train(other, one, steps=2, checkpoint=folder, resume=True)


@pytest.mark.parametrize(
    ("first", "second"), [("Adam(p, lr=0.01)", "SGD(p, lr=0.01)"), ("SGD(p, 0.1, 0.9)", "Adam(p)")]
)
def test_a_checkpoint_of_another_optimizer(tmp_path: Path, first: str, second: str) -> None:
    """Its state would be taken for something that it is not, or be missing in the middle of a step."""
    folder, one = tmp_path / "saved", plan("gpipe", (7, (0,)))
    run(write_job(tmp_path, optimizer=first), one, steps=1, checkpoint=folder)
    with pytest.raises(InputError, match=rf"optimizer: found .* of '0.weight'; expected .* which {second[:3]}"):
        train(write_job(tmp_path, optimizer=second), one, steps=2, checkpoint=folder, resume=True)


def test_a_full_disk_ends_the_run_with_one_error(tmp_path: Path) -> None:
    """When a checkpoint cannot be written the run ends with that error, and the one before is whole."""
    # Larger than the file by which the workers meet, which grows with each exchange, and smaller than a checkpoint.
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))"
    folder, good = tmp_path / "saved", write_job(tmp_path, name="good.py")
    good.write_text(
        good.read_text().replace("Linear(6, 8)", "Linear(6, 640)").replace("Linear(8, 8)", "Linear(640, 8)")
    )
    job = tmp_path / "job.py"
    job.write_text(
        good.read_text().replace("self.taken += 1", f"self.taken += 1; self.taken == 60 and exec({limit!r})")
    )
    with pytest.raises(InputError, match="File too large") as caught:
        train(job, plan("flush"), steps=1000, checkpoint=folder, every=2)
    assert caught.value.exit_code == 2
    assert names_in(folder)
    assert list(folder.glob(".step-*")) == []
    done = int(names_in(folder)[-1].removeprefix("step-"))
    assert run(good, plan("flush"), steps=done + 1, checkpoint=folder, resume=True).first == done


def test_the_number_of_workers_must_be_the_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun with another number of workers: one error that says how to start it, before anybody waits for anybody."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(InputError) as caught:
        train(write_job(tmp_path), plan("flush"), steps=1)
    assert (caught.value.place, caught.value.found) == ("workers", "3")
    assert "--nproc-per-node 2" in str(caught.value)


def test_more_workers_than_one_machine_should_have(tmp_path: Path) -> None:
    """A plan for a cluster is not started on one machine."""
    with pytest.raises(InputError, match="at most 64 local workers"):
        train(write_job(tmp_path), plan("data_parallel", (7, tuple(range(65)))), steps=1)


def test_a_plan_for_devices_that_are_not_there(tmp_path: Path) -> None:
    """A plan for graphics processors on a machine without them says how to run it all the same."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(InputError, match="--device cpu"):
        train(write_job(tmp_path), plan("gpipe", (7, (0,))), steps=1, device="cuda")


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": 1, "threads": 100_000}, "threads"),
        ({"steps": 1, "every": 2}, "every"),
        ({"steps": 1, "resume": True}, "resume"),
        ({"steps": 1, "device": "gpu"}, "device"),
        ({"steps": 1, "silence_s": 0.0}, "silence_s"),
        ({"steps": 1, "silence_s": float("inf")}, "silence_s"),
        ({"steps": 1, "stall_s": "60"}, "stall_s"),
        ({"steps": 6.5}, "steps"),
        ({"steps": 6, "keep": 1.5}, "keep"),
        ({"steps": 6, "every": True, "checkpoint": "saved"}, "every"),
        ({"steps": 6, "checkpoint": ""}, "checkpoint"),
        ({"steps": 6, "trace": ""}, "trace"),
        ({"steps": 6, "host_link_bytes_per_s": float("inf")}, "host_link_bytes_per_s"),
        ({"steps": 1, "chekpoint": "x"}, "train: chekpoint"),
        ({"steps": 1, "trace": "/nowhere/at/all.json"}, "trace /nowhere/at/all.json"),
        ({"steps": 1, "trace": "/"}, "trace /"),
        ({"steps": 1, "checkpoint": __file__}, f"checkpoint {__file__}"),
        ({"steps": 1, "checkpoint": f"{__file__}/saved"}, f"checkpoint {__file__}/saved"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, options: dict[str, Any], place: str) -> None:
    """Each is refused by name before any worker starts."""
    with pytest.raises(InputError) as caught:
        train(write_job(tmp_path), plan("flush"), **options)
    assert caught.value.place == place


def test_a_path_without_a_file(tmp_path: Path) -> None:
    """It is refused before any worker starts."""
    with pytest.raises(InputError, match="no such file"):
        train(tmp_path / "nowhere.py", plan("flush"), steps=1)


def test_a_job_instead_of_its_file(tmp_path: Path) -> None:
    """A job that came from a file trains as the file does; one that was changed since does not train."""
    path = write_job(tmp_path)
    job = load_job(path)
    assert run(job, plan("flush"), steps=2).losses == reference(path, plan("flush"), 2)
    with torch.no_grad():
        job.model[0].weight.zero_()
    with pytest.raises(InputError, match=r"0\.weight has other values; expected the original job"):
        train(job, plan("flush"), steps=2)


# A script that makes its job in Python: where the job is made, and how it is handed to train, differ.
SCRIPT = """
{job}

def model():
    return nn.Sequential(
        nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 3)
    ).double()

def job_of(model):
    return Job(model, nn.functional.cross_entropy, Data(), lambda p: torch.optim.Adam(p, lr=0.01), batch_size=8, name="tiny")

def with_seed():
    torch.manual_seed(0)
    return job_of(model())

def without_seed():
    torch.seed()
    return job_of(model())

def with_width(width):
    return replace(with_seed(), seed=width)

def main():
    import json
    import hocket
    for given in ({given}):
        try:
            print(json.dumps(hocket.train(given(), "plan.yaml", steps=2).losses))
        except hocket.errors.HocketError as error:
            {then}

{guard}main()
"""


def script_output(folder: Path, given: str, guard: str, then: str) -> "subprocess.CompletedProcess[str]":
    """Run the script, which hands these jobs to train, one after the other; `then` is done after an error."""
    text = write_job(folder).read_text().replace("import torch\n", "from dataclasses import replace\n\nimport torch\n")
    (folder / "script.py").write_text(SCRIPT.format(job=text, given=given, guard=guard, then=then))
    plan("flush").save(folder / "plan.yaml")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, "script.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_script_that_makes_its_job(tmp_path: Path) -> None:
    """Workers make the job again from the script, and train it as they would train a job file.

    Where they cannot, there is one error.
    """
    given = "lambda: job, with_seed, without_seed, lambda: with_width(3)"
    done = script_output(tmp_path, given, 'if __name__ == "__main__": ', "print(json.dumps(str(error)))")
    assert done.returncode == 0, done.stderr
    at_the_top, by_function, unlike, changed = map(json.loads, done.stdout.splitlines())
    assert at_the_top == by_function == reference(tmp_path / "job.py", plan("flush"), 2)
    assert "a different job" in unlike
    assert "a Job that other processes cannot create" in changed


@pytest.mark.slow
def test_a_script_without_a_guard(tmp_path: Path) -> None:
    """Workers that import it would train again: the error says what to write."""
    done = script_output(tmp_path, "lambda: job,", "", "raise")
    expected = 'script.py: found a call of hocket.train; expected a call under `if __name__ == "__main__":`'
    assert (done.returncode, done.stdout) == (1, "")
    assert expected in done.stderr.splitlines()[-1]


def test_a_job_that_nobody_can_make_again(tmp_path: Path) -> None:
    """It is refused before any worker starts, with what to do."""
    job = replace(load_job(write_job(tmp_path)), seed=3)
    with pytest.raises(InputError, match=r"make_job\(\) in job\.py, or start this script with torchrun"):
        train(job, plan("flush"), steps=1)


def test_a_batch_that_is_not_the_jobs(tmp_path: Path) -> None:
    """A plan for another batch size than the job's is refused."""
    job = write_job(tmp_path)
    job.write_text(job.read_text().replace("batch_size=8", "batch_size=16"))
    with pytest.raises(InputError, match="8 in the plan"):
        train(job, plan("gpipe", (7, (0,))), steps=1)


@pytest.mark.parametrize(("precision", "profiled"), [(None, "bfloat16"), ("bfloat16", "float64")])
def test_a_precision_that_is_not_the_jobs(tmp_path: Path, precision: str | None, profiled: str) -> None:
    """A plan of a profile in another type than the job computes in is refused, whichever is the shorter."""
    chosen = replace(plan("gpipe", (7, (0,))), dtype=profiled)
    with pytest.raises(InputError, match=f"precision: found {profiled} in the plan; expected {precision or 'float64'}"):
        train(write_job(tmp_path, precision=precision), chosen, steps=1)


def test_checkpoints_move_between_precisions(tmp_path: Path) -> None:
    """Trained in bfloat16 on two workers, then in the model's own type on one, and back: what is saved is in the model's type."""
    saved = tmp_path / "saved"
    job = {p: write_job(tmp_path, name=f"{p}.py", precision=p) for p in ("bfloat16", None)}
    chosen = {"bfloat16": plan("flush"), None: plan("flush", (7, (0,)))}
    losses = list[float]()
    for precision, steps in (("bfloat16", 2), (None, 4), ("bfloat16", 6)):
        heard = run(job[precision], chosen[precision], steps=steps, checkpoint=saved, resume="auto")
        losses += heard.losses
        told = [note for note in heard.notes if " was computed in " in note]
        assert len(told) == (steps > 2)  # of a first step there is no checkpoint
        before, now = ("bfloat16", "float64") if precision is None else ("float64", "bfloat16")
        assert all(f"was computed in {before}" in note and note.endswith(f"weights in {now}") for note in told)
    plain = reference(job[None], chosen[None], 6)
    assert losses == pytest.approx(plain, rel=1e-2)
    assert losses != pytest.approx(plain, rel=1e-6)
    found = newest(saved, KVExchange(None, 0, 1), lambda text: None)
    assert found is not None
    state = found.load(lambda name: name.startswith("model."))
    assert {tensor.dtype for tensor in state.values()} == {torch.float64}
