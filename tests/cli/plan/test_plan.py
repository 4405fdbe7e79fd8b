"""The commands that need no devices, as a person and as a machine meets them."""

import json
from dataclasses import replace
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from hocket.cli import main
from hocket.cli.plan import plan
from hocket.cli.plan.explain import explained_profile, explained_sizes
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan
from hocket.profiling.analytic.synthetic import chain
from hocket.program.instruction import Kind
from hocket.program.trace.chrome import save_trace
from hocket.program.trace.trace import Event, Trace

PROFILE = chain(4, forward_s=0.001, backward_s=0.002, device_type="cpu-core")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working folder with a profile, a cluster and a flush plan.

    The batch is not a multiple of the microbatch.
    """
    monkeypatch.chdir(tmp_path)
    PROFILE.save("profile.json")
    Cluster("two", (Level("server", 2, 1e9, 1e-6),), "cpu-core").save("cluster.yaml")
    assert main(["plan", "profile.json", "cluster.yaml", "-B", "10", "-b", "4", "-s", "flush", "-o", "plan.yaml"]) == 0
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """Return a command's standard output, followed by its standard error."""
    capsys.readouterr()
    assert main(list(words)) == code
    return "".join(capsys.readouterr())


def document(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    """The one JSON document on standard output."""
    capsys.readouterr()
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


# --- plan


def test_the_best_plan_says_when_its_mathematics_are_others(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output says if the best plan differs from one process.

    A strategy with stale weights is named in its row and in a note. A synchronous strategy has no note.
    """
    words = ("plan", "profile.json", "cluster.yaml", "-B", "16", "-b", "2", "-s")
    late = said(capsys, *words, "two_bw")
    assert "1 update old" in late
    assert "note: two_bw computes gradients on weights 1 update old\n" in late
    same = said(capsys, *words, "flush")
    assert " same\n" in same
    assert "note" not in same
    rule = document(capsys, *words, "two_bw")["candidates"][0]["update_rule"]
    assert rule == {
        "kind": "delayed",
        "same_as_one_process": False,
        "updates_old": [1, 1],
        "samples": [16, 16],
        "differences": {},
    }


def test_what_may_be_used_of_devices(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An amplification limit applies to all plans.

    Each plan has its amplification, and the explanation that of the best plan and the runner-up. Refusals say by how
    much they exceed the limit. The simulation of a plan that lends devices names its amplification too. Without a
    limit, amplification is not mentioned.
    """
    words = ("plan", "profile.json", "cluster.yaml", "-B", "8")
    assert "amplification" not in said(capsys, *words)
    found = document(capsys, *words, "--amplification-limit", "1.05", "--candidates")
    used = [one["amplification"] for one in found["candidates"]]
    assert all(1 <= one <= 1.05 for one in used)
    assert found["amplification"] == {"limit": 1.05, "best": used[0], "runner_up": used[1]}
    assert any("above the limit of 1.05" in one["reason"] for one in found["refused"])
    text = said(capsys, *words, "--amplification-limit", "1.05")
    assert f"amplification {used[0]:.2f} of 1.05: device-seconds of an iteration by the seconds of one alone; " in text
    assert f"; {used[1]:.2f} of the runner-up" in text
    said(capsys, *words, "--amplification-limit", "2", "-s", "burst_parallel", "-o", "burst.yaml")
    best = document(capsys, *words, "--amplification-limit", "2", "-s", "burst_parallel")["candidates"][0]
    assert f"{best['amplification']:.2f} (device-seconds of an iteration" in said(capsys, "simulate", "burst.yaml")
    error = said(capsys, "plan", "gpt2-xl", "cluster.yaml", "-B", "8", "--amplification-limit", "2", code=2)
    assert "expected a profile, where each layer may use its own number of devices" in error


def test_buckets_of_gradients(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The explanation and the JSON document name the gain of other buckets.

    `--buckets` also accepts `default`, a number of bytes and a size with a unit.
    """
    words = ("plan", "profile.json", "cluster.yaml", "-B", "4", "-b", "1", "-s", "data_parallel", "--shard", "none")
    found = document(capsys, *words)
    line = found["buckets"]
    assert line == found["candidates"][0]["buckets"]
    assert line.startswith("buckets: ")
    assert line.endswith("quicker")
    assert f"  {line}\n" in said(capsys, *words)
    for word, count in (("default", 1), ("4e6", 4), ("4MB", 4)):
        plain = document(capsys, *words, "--buckets", word)
        assert not plain["buckets"]
        assert len(plain["candidates"][0]["plan"]["stages"][0]["buckets"]) == count
    assert "auto, default or a number of bytes" in said(capsys, *words, "--buckets", "some", code=2)
    assert "bytes, such as 2GB" in said(capsys, *words, "--buckets", "4mb", code=2)


def test_why_waves_are_not_taken(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The explanation says why a plan with waves was not chosen.

    The JSON document has the same line. It is absent if waves were not considered.
    """
    words = ("plan", "profile.json", "cluster.yaml", "-B", "4", "-b", "1", "-s", "data_parallel")
    (line,) = document(capsys, *words, "-s", "waves")["verdict"]["waves"]
    assert line.startswith("waves: ")
    assert f"  {line}\n" in said(capsys, *words, "-s", "waves")
    assert document(capsys, *words)["verdict"]["waves"] == []


def test_what_replicas_divide(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--shard` applies to every candidate.

    It is written to the plan and lowers its memory. Other words are refused, also for analytic models.
    """
    Cluster("a100", (Level("server", 2, 1e9, 1e-6),), "a100-80gb").save("a100.yaml")
    asked = ["plan", "profile.json", "cluster.yaml", "-B", "8", "-s", "data_parallel", "-b", "2", "-o", "shared.yaml"]
    none, shared = (document(capsys, *asked, "--shard", shard) for shard in ("none", "optimizer"))
    plan = Plan.read("shared.yaml")
    assert plan.shard == "optimizer"
    assert "shard: optimizer" in Path("shared.yaml").read_text()
    peaks = [max(found["candidates"][0]["peak_memory_bytes"].values()) for found in (none, shared)]
    whole = sum(layer.optimizer_bytes for layer in PROFILE.layers)
    assert peaks[0] - peaks[1] == pytest.approx(whole / 2, rel=0.01)
    for units in (document(capsys, "plan", "profile.json", "cluster.yaml", "-B", "8", "-s", "fully_sharded"), None):
        assert units is None or all(one["config"].endswith((" units", "shard=full")) for one in units["candidates"])
    assert "found 'optimiser'; expected one of none, optimizer, full" in said(
        capsys, *asked, "--shard", "optimiser", code=2
    )
    assert "found 'fully'; expected one of none, optimizer, full" in said(
        capsys, "plan", "gpt3-175b", "a100.yaml", "-B", "8", "--shard", "fully", code=2
    )


@pytest.mark.slow
def test_only_synchronous_plans(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All candidates are synchronous unless --stale is given.

    With --synchronous, the names of asynchronous strategies are refused.
    """
    words = ("plan", "profile.json", "cluster.yaml", "-B", "16")
    for asked in (words, (*words, "--synchronous")):
        found = document(capsys, *asked)
        assert {c["strategy"] for c in found["candidates"]} >= {"flush", "gpipe", "data_parallel"}
        assert all(c["update_rule"]["same_as_one_process"] for c in found["candidates"])
    every = document(capsys, *words, "--stale")["candidates"]
    assert {c["strategy"] for c in every} >= {"two_bw", "pipedream", "flush"}
    assert "two_bw, an asynchronous strategy" in said(capsys, *words, "--synchronous", "-s", "two_bw", code=2)


def test_what_old_weights_would_gain(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line names the possible gain of stale weights.

    It says how the updates differ. It appears only without --stale and --synchronous, if such a plan is faster.
    """
    words = ("plan", "profile.json", "cluster.yaml", "-B", "4", "-b", "1", "--buckets", "default")
    best, *_ = document(capsys, *words)["candidates"]
    stale = document(capsys, *words, "-s", "two_bw", "-s", "pipedream")["candidates"]
    quickest_s = min(one["iteration_s"] for one in stale)
    verdict = document(capsys, *words)["verdict"]
    assert verdict["stale"].startswith(("two_bw ", "pipedream "))
    assert verdict["stale_gains"] == pytest.approx(1 - quickest_s / best["iteration_s"])
    told = said(capsys, *words)
    assert f"--stale would find {verdict['stale']}, which takes {verdict['stale_gains']:.1%} less; " in told
    for asked in ("--stale", "--synchronous"):
        assert "--stale would" not in said(capsys, *words, asked)


def test_nothing_that_fits_is_one_document_with_the_reason(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If nothing fits, the JSON document has the refusals and the error.

    The text has one line for each strategy.
    """
    cluster = replace(Cluster.read("cluster.yaml"), memory_bytes=1e6)
    cluster.save("small.yaml")
    words = ("plan", "profile.json", "small.yaml", "-B", "16", "-s", "flush", "-s", "gpipe")
    found = document(capsys, *words, code=2)
    assert found["candidates"] == []
    assert "nothing that fits" in found["error"]["found"]
    lines = [line for line in said(capsys, *words, code=2).splitlines() if "refused" in line]
    assert len(lines) == 2
    assert " choices refused, such as " in lines[0]
    assert " needs " in lines[0]


def test_figures_of_another_device_type_are_called_rough(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Times of another device type are called rough.

    A profile of a CPU core, planned on a GPU, says that its times are scaled by peak rates.
    """
    replace(Cluster.read("cluster.yaml"), device_type="v100-16gb").save("gpus.yaml")
    found = document(capsys, "plan", "profile.json", "gpus.yaml", "-B", "4", "-s", "flush")
    assert any("measured on cpu-core, scaled to v100-16gb by their peak rates: rough" in n for n in found["notes"])
    assert document(capsys, "plan", "profile.json", "cluster.yaml", "-B", "4", "-s", "flush")["notes"] == []


# --- show


def test_a_ragged_batch_is_spelt_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last microbatch is smaller, and the title says so."""
    text = said(capsys, "show", "plan.yaml")
    assert "batch 10 as 3 microbatches, 4+4+2 on two" in text
    assert "flush has the mathematics of one process" in text


def test_a_plan_edited_by_hand_is_predicted_anew(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan edited by hand has a new prediction.

    The output also names the prediction in the file if it differs.
    """
    assert "the file predicts" not in said(capsys, "show", "plan.yaml")
    before = document(capsys, "show", "plan.yaml")
    assert before["predicted"] == before["predicted_when_planned"]
    plan = Plan.read("plan.yaml")
    replace(plan, stages=tuple(replace(stage, recompute=True) for stage in plan.stages)).save("plan.yaml")
    assert "the file predicts" in said(capsys, "show", "plan.yaml")
    after = document(capsys, "show", "plan.yaml")
    assert after["predicted_when_planned"] == before["predicted"]
    assert after["predicted"]["iteration_s"] > before["predicted"]["iteration_s"]
    simulated = document(capsys, "simulate", "plan.yaml")
    assert simulated["iteration_s"] == pytest.approx(after["predicted"]["iteration_s"])


# --- errors


def test_an_error_is_json_where_json_is_expected(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json, an error is a JSON document on standard output.

    Standard error has the sentence. Without --json, standard output is empty.
    """
    assert main(["show", "none.yaml", "--json"]) == 2
    out, err = capsys.readouterr()
    error = json.loads(out.splitlines()[-1])["error"]
    assert (error["kind"], error["place"], error["found"]) == ("InputError", "none.yaml", "no such file")
    assert err == f"error: {error['message']}\n"
    assert main(["show", "none.yaml"]) == 2
    assert capsys.readouterr().out == ""


def test_a_wrong_option_is_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    """A usage error is told to machines as well."""
    assert document(capsys, "show", "plan.yaml", "--wdith", "3", code=2)["error"]["kind"] == "NoSuchOption"


# --- compare


def test_compare_says_nothing_that_is_not_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A comparison makes no claim without data.

    It has no table for memory that was not recorded and no percentage of zero. It says that the
    measurement has later instructions.
    """
    events = [Event(0, "compute", f"step 0 u{k}", Kind.STEP, 0, k, k + 0.5, k + 1.0) for k in range(4)]
    loads = [Event(0, "load", "load 0 #0", Kind.LOAD, 0, 0, 0.0, end_s) for end_s in (0.0, 0.25)]
    sends = [Event(0, "send", "send act #0", Kind.SEND, 0, 0, 0.0, 1.0)]
    save_trace(Trace.of([loads[0], *events[:2]]), "predicted.json")
    save_trace(Trace.of([loads[1], *events, *sends]), "measured.json")
    text = said(capsys, "compare", "predicted.json", "measured.json")
    assert "2 instructions of the measurement lie beyond the simulated periods" in text
    assert "0 instructions only in the prediction, 1 only in the measurement" in text
    assert "peak memory: not in both traces" in text
    assert "nan" not in text
    load = next(line for line in text.splitlines() if line.split()[:2] == ["load", "0"])
    assert "measured (s)" in text
    assert load.split()[2:] == ["0", "0.250", "-", "1"]
    found = document(capsys, "compare", "predicted.json", "measured.json")
    assert (found["later_measured"], found["only_measured"], found["memory"]) == (2, 1, [])


def test_compare_takes_the_prediction_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A comparison expects the prediction first.

    A measured trace before a simulated trace is refused. Two traces of the same kind are accepted.
    """
    for name, source in (("run", "measured"), ("foreseen", "simulated")):
        load = Event(0, "load", "load 0 #0", Kind.LOAD, 0, 0, 0.0, 1.0)
        save_trace(Trace.of([load], meta={"source": source}), f"{name}.json")
    error = document(capsys, "compare", "run.json", "foreseen.json", code=2)["error"]
    assert error["place"] == "run.json"
    assert "Swap the two files." in error.values()
    document(capsys, "compare", "foreseen.json", "run.json")
    document(capsys, "compare", "run.json", "run.json")


# --- what is not what is asked for


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("plan cluster.yaml profile.json -B 4", ("cluster.yaml", "what seems to be a cluster", "a profile")),
        ("plan profile.json profile.json -B 4", ("profile.json", "what seems to be a profile", "a cluster")),
        ("plan plan.yaml cluster.yaml -B 4", ("plan.yaml", "what seems to be a plan", "a profile")),
        ("plan empty.yaml cluster.yaml -B 4", ("empty.yaml", "an empty file", "a profile")),
        ("plan profile.json empty.yaml -B 4", ("empty.yaml", "an empty file", "a cluster")),
        ("plan broken.json cluster.yaml -B 4", ("broken.json, line 1", "broken JSON: 'oops}'", "a profile")),
        ("show binary.yaml", ("binary.yaml", "a binary file", "a plan")),
        ("check cluster.yaml", ("cluster.yaml", "what seems to be a cluster", "a plan")),
        ("check profile.json", ("profile.json", "what seems to be a profile", "a plan")),
        ("simulate empty.yaml", ("empty.yaml", "an empty file", "a plan")),
        ("show .", (".", "a folder", "a readable file")),
        ("profile .", (".", "a folder", "a Python file that defines")),
        ("profile none.py --device tpu", ("device", "'tpu'", "cpu, cuda (the current GPU) or cuda:N")),
        ("profile none.py -o none/p.json", ("none/p.json", "no folder", "a path in an existing folder")),
        ("simulate plan.yaml --report .", (".", "a folder", "a file name")),
    ],
)
def test_the_wrong_file_is_told_what_it_seems_to_be(
    folder: Path, words: str, parts: tuple[str, str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Place, what stands there and what was expected, in one error."""
    Path("empty.yaml").touch()
    Path("broken.json").write_text('{"layers": oops}')
    Path("binary.yaml").write_bytes(b"\x7fELF\xd0\x01")
    error = document(capsys, *words.split(), code=2)["error"]
    assert error["place"] == parts[0]
    assert error["found"].startswith(parts[1])
    assert error["expected"].startswith(parts[2])


def test_groups_of_a_profile_are_those_of_its_members(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tensor-parallel profile must be a profile of a group's member.

    A profile of one device is refused. The option --tensor with a profile gives an error that names --tensor-profile.
    """
    words = ("plan", "profile.json", "cluster.yaml", "-B", "4")
    error = document(capsys, *words, "--tensor-profile", "profile.json", code=2)["error"]
    assert (error["place"], error["found"]) == ("--tensor-profile", "profile.json, a profile of 1 device")
    assert "hocket profile --tensor 2" in error["expected"]
    assert "Give --tensor-profile" in said(capsys, *words, "-t", "2", code=2)
    assert "--tensor-profile" not in said(capsys, *words, "--recompute", "full", code=2)


def test_a_plan_whose_profile_is_gone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan's key is named, and what to do about it."""
    Path("profile.json").unlink()
    text = said(capsys, "simulate", "plan.yaml", code=2)
    assert "plan.yaml: profile: found 'profile.json', and there is no file" in text
    assert "`profile:`" in text


def of_sizes() -> None:
    """Write an analytic model, and a cluster for each kind of model."""
    Path("gpt.yaml").write_text("layers: 2\nhidden: 256\nheads: 4\nvocabulary: 512\nsequence: 64\n")
    for name, device_type in (("gpt", "v100-16gb"), ("profile", "cpu-core")):
        replace(Cluster.read("cluster.yaml"), device_type=device_type).save(f"{name}.cluster.yaml")


@pytest.mark.parametrize("model", ["profile.json", "gpt.yaml"])
def test_ctrl_c_while_it_explains(
    folder: Path, model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is shown and written before, which the last words say.

    With --json there is no document then. Without a file, no file is named.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for name in ("explained_profile", "explained_sizes"):
        monkeypatch.setattr(f"hocket.cli.plan.plan.{name}", interrupt)
    of_sizes()
    words = ["plan", model, f"{Path(model).stem}.cluster.yaml", "-B", "8"]
    assert main([*words, "-o", "there.yaml"]) == 130
    text, error = capsys.readouterr()
    assert error == "interrupted while explaining the plan; there.yaml was written before\n"
    assert "samples" in text
    assert text.rstrip().splitlines()[-1].startswith("wrote there.yaml")
    assert Plan.read("there.yaml").batch_size == 8
    assert main([*words, "--json", "-o", "other.yaml"]) == 130
    text, error = capsys.readouterr()
    assert (text, error) == ("", "interrupted while explaining the plan; other.yaml was written before\n")
    assert Plan.read("other.yaml").batch_size == 8
    assert main(words) == 130
    assert capsys.readouterr().err == "interrupted while explaining the plan\n"


@pytest.mark.parametrize("model", ["profile.json", "gpt.yaml"])
def test_the_plan_is_shown_before_its_explanation(folder: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table and the name of the written file leave the buffer of standard output before the explanation begins."""
    out, shown = BytesIO(), list[bytes]()

    def explained(found: Any, progress: Any) -> Any:
        shown.append(out.getvalue())
        return whole[model](found, progress)

    whole = {"profile.json": explained_profile, "gpt.yaml": explained_sizes}
    for function in ("explained_profile", "explained_sizes"):
        monkeypatch.setattr(plan, function, explained)
    buffered = TextIOWrapper(out, encoding="utf-8")
    monkeypatch.setattr("sys.stdout", buffered)
    of_sizes()
    assert main(["plan", model, f"{Path(model).stem}.cluster.yaml", "-B", "8", "-o", "there.yaml"]) == 0
    assert b"samples" in shown[0]
    assert b"\nwrote there.yaml" in shown[0]
    assert b"what would help" not in shown[0]
    buffered.flush()
    assert b"what would help" in out.getvalue()
