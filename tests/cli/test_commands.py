"""Each command with text and JSON output: results, files and refusals."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hocket.hardware.cluster import Cluster
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.profile import ModelProfile
from hocket.program.text.printer import parse_program
from hocket.program.trace.chrome import read_trace, save_trace
from hocket.strategies.base.strategy import members, searched
from hocket.util.documents import parse_yaml, write_yaml
from tests.cli.conftest import Run
from tests.paths import ROOT
from tests.reporting.helpers import documents

# What docs promise to machines, at least.
SIMULATED = {
    "iteration_s",
    "samples_per_s",
    "bubble_fraction",
    "peak_memory_bytes",
    "weight_versions",
    "sent_bytes",
    "swapped_bytes",
    "instructions",
    "wall_s",
}
CANDIDATE = {"strategy", "config", "iteration_s", "samples_per_s", "peak_memory_bytes", "plan"}


def test_plan_for_machines(run: Run, folder: Path) -> None:
    """The JSON of `hocket plan` has all promised keys and unrounded numbers.

    The plan can be read again.
    """
    found = run("plan", "profile.json", "cluster.yaml", "--batch", 8, "--stale", "--json")
    assert found.code == 0
    data = found.json
    assert {"search_s", "candidates", "refused"} <= set(data)
    assert data["considered"] >= len(data["candidates"]) > 0
    for candidate in data["candidates"]:
        assert set(candidate) >= CANDIDATE
        assert all(size > 0 for size in candidate["peak_memory_bytes"].values())
        plan = Plan.from_yaml(json.dumps(candidate["plan"]))
        assert plan.compile(ModelProfile.read("profile.json")).stages
        assert plan.predicted is not None
        assert plan.predicted.iteration_s == candidate["iteration_s"]
    assert all({"strategy", "reason"} <= set(refusal) and refusal["reason"] for refusal in data["refused"])
    assert {c["strategy"] for c in data["candidates"]} | {r["strategy"] for r in data["refused"]} == set(searched())


def test_plan_for_people(run: Run, folder: Path) -> None:
    """The text of `hocket plan` has a table, the written file and a next step.

    The written plan is the best candidate, and it is legal.
    """
    found = run("plan", "profile.json", "cluster.yaml", "--batch", 8, "-s", "flush", "-b", 2, "-o", "best.yaml")
    assert found.code == 0
    assert "flush" in found.out
    assert "hocket check best.yaml" in found.out
    plan = Plan.read("best.yaml")
    assert (plan.strategy, plan.batch_size, plan.microbatch_size, plan.profile) == ("flush", 8, 2, "profile.json")
    assert plan.cluster == Cluster.read("cluster.yaml")
    assert run("check", "best.yaml").code == 0


def test_a_plan_in_another_folder_finds_its_profile(run: Run, folder: Path) -> None:
    """The profile's path is written as seen from the plan."""
    Path("plans").mkdir()
    assert run("plan", "profile.json", "cluster.yaml", "--batch", 8, "-s", "flush", "-o", "plans/p.yaml").code == 0
    assert Plan.read("plans/p.yaml").profile == "../profile.json"
    assert run("simulate", "plans/p.yaml").code == 0


def test_a_batch_that_no_microbatch_divides(run: Run, folder: Path) -> None:
    """A batch that is not a multiple of the microbatch works.

    The last microbatch is smaller in the plan, in the proof and in the simulation.
    """
    arguments = ("plan", "profile.json", "cluster.yaml", "--batch", 7, "-b", 2, "-s", "flush", "-o", "odd.yaml")
    assert run(*arguments).code == 0
    plan = Plan.read("odd.yaml")
    assert [plan.samples(m) for m in range(plan.microbatches)] == [2, 2, 2, 1]
    assert run("check", "odd.yaml").code == 0
    assert run("simulate", "odd.yaml", "--json").json["samples_per_s"] > 0


def test_refusals_are_told_by_the_nearest_miss(run: Run, folder: Path) -> None:
    """If nothing fits, the error names the nearest miss.

    The output has the reasons by strategy. The exit code is 2, and no file is written.
    """
    data = parse_yaml(Path("cluster.yaml").read_bytes(), "cluster")
    Path("small.yaml").write_text(write_yaml(data | {"memory_bytes": 1e6}))
    found = run("plan", "profile.json", "small.yaml", "--batch", 8, "--stale", "-o", "none.yaml")
    assert found.code == 2
    assert all(name in found.out + found.err for name in searched())
    assert "nothing that fits; nearest is" in found.err
    assert len(found.err.splitlines()) == 1
    assert "choices: replicas of each stage" in found.out
    assert "refused: harmony" not in found.out
    assert found.err.count("harmony: ") == 1
    assert not Path("none.yaml").exists()


def test_show(run: Run, folder: Path) -> None:
    """`hocket show` prints stages and the schedule of the devices.

    The JSON has the plan, its update rule and the number of instructions. With --program, it prints the program.
    """
    found = run("show", "plan.yaml")
    assert found.code == 0
    assert "device 1" in found.out
    assert "F0" in found.out
    data = run("show", "plan.yaml", "--json").json
    assert data["strategy"] == "flush"
    assert data["rule"]["kind"] == "sync"
    program = parse_program(run("show", "plan.yaml", "--program").out, "shown")
    assert len(program) == data["instructions"] > 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "plan profile.json cluster.yaml --batch -4",
            "error: --batch: found -4; expected >= 1",
        ),
        (
            "plan profile.json cluster.yaml --batch 8 --samples -3",
            "error: --samples: found -3; expected the number of samples",
        ),
        ("plan gpt2-xl cluster.yaml --batch 8 --tokens -3", "error: --tokens: found -3; expected the number of tokens"),
        (
            "plan gpt2-xl cluster.yaml --batch 8 -t 3",
            "error: --tensor: found 3; expected a divisor of heads, 25",
        ),
        (
            "plan profile.json cluster.yaml --batch 8 -b 9",
            "error: --microbatch: found 9; expected a number from 1 to 8",
        ),
        ("plan profile.json cluster.yaml --batch 8 -s pipe", "error: --strategy: found 'pipe'"),
        ("train job.py plan.yaml --resume", "error: --resume: found no --checkpoint DIR"),
        ("plan profile.json plan.yaml --batch 8", "plan.yaml: found what seems to be a plan; expected a cluster"),
        ("profile job.py --device-type a100", "Did you mean 'a100-40gb' or 'a100-80gb'?"),
        ("train plan.yaml job.py", "The other way round: hocket train job.py plan.yaml"),
    ],
)
def test_mistakes_are_told_in_the_words_of_who_made_them(run: Run, folder: Path, words: str, told: str) -> None:
    """The option that was given, the file that was meant, the name that was begun."""
    found = run(*words.split())
    assert found.code == 2
    assert told in found.err


def test_sizes_that_were_not_measured_are_told(run: Run, folder: Path) -> None:
    """A plan for them is read off a line through those that were."""
    words = ("plan", "profile.json", "cluster.yaml", "--batch", 64, "-b")
    sizes = ModelProfile.read("profile.json").microbatch_sizes
    assert "were not measured" not in run(*words, sizes[-1]).out
    assert f"note: microbatches of {2 * sizes[-1]} were not measured" in run(*words, 2 * sizes[-1]).out


def test_names_with_brackets_are_shown_as_they_are(run: Run, folder: Path) -> None:
    """A layer called 'blocks[bold]0' is no markup."""
    Path("odd.json").write_text(Path("profile.json").read_text().replace('"layer0"', '"blocks[bold]0"'))
    assert run("plan", "odd.json", "cluster.yaml", "--batch", 8, "-s", "flush", "-o", "odd.yaml").code == 0
    assert "blocks[bold]0" in run("show", "odd.yaml").out


def test_check(run: Run, folder: Path) -> None:
    """`hocket check` returns 0 for a legal plan, and 1 with the problems.

    In the second case, an instruction is removed from the program.
    """
    assert run("check", "plan.yaml", "--json").json["problems"] == []
    lines = run("show", "plan.yaml", "--program").out.splitlines(keepends=True)
    at = next(k for k, line in enumerate(lines) if line.strip().startswith("send "))
    Path("broken.txt").write_text("".join(lines[:at] + lines[at + 1 :]))
    broken = run("check", "plan.yaml", "--program", "broken.txt", "--json")
    assert broken.code == 1
    assert broken.json["legal"] is False
    assert broken.json["problems"]
    assert all(problem["message"] for problem in broken.json["problems"])
    spoken = run("check", "plan.yaml", "--program", "broken.txt")
    assert spoken.code == 1
    assert "device" in spoken.out
    assert spoken.err == ""
    assert run("plan", "profile.json", "cluster.yaml", "-B", 8, "-s", "data_parallel", "-o", "other.yaml").code == 0
    Path("other.txt").write_text(run("show", "other.yaml", "--program").out)
    other = run("check", "plan.yaml", "--program", "other.txt")
    assert other.code == 2
    assert "stages" in other.err
    assert "like the plan" in other.err


def test_check_sees_too_little_memory(run: Run, folder: Path) -> None:
    """A plan whose cluster was edited to less memory is no longer legal."""
    data = parse_yaml(Path("plan.yaml").read_bytes(), "plan")
    data["cluster"]["memory_bytes"] = 1e6
    Path("plan.yaml").write_text(write_yaml(data))
    found = run("check", "plan.yaml")
    assert found.code == 1
    assert "MiB" in found.out


def test_simulate(run: Run, folder: Path) -> None:
    """Every promised figure; the files that were asked for; the plan's own prediction."""
    found = run("simulate", "plan.yaml", "--json", "--trace", "t.json", "--report", "r.html")
    assert found.code == 0
    assert set(found.json) >= SIMULATED
    plan = Plan.read("plan.yaml")
    assert plan.predicted is not None
    assert found.json["iteration_s"] == plan.predicted.iteration_s
    assert json.loads(Path("t.json").read_text())["traceEvents"]
    assert Path("r.html").read_text().startswith("<!")
    assert "samples/s" in run("simulate", "plan.yaml").out


def test_compare(run: Run, folder: Path) -> None:
    """A trace beside itself does not differ; people see no 'nan'."""
    run("simulate", "plan.yaml", "--trace", "t.json")
    data = run("compare", "t.json", "t.json", "--json").json
    assert data["update"]["predicted"] == data["update"]["measured"] > 0
    assert data["only_predicted"] == data["only_measured"] == 0
    parts = data["parts"]
    assert (parts["pace"], parts["pace_s"], parts["waits_s"], parts["model_s"]) == (1.0, 0.0, 0.0, 0.0)
    spoken = run("compare", "t.json", "t.json")
    assert spoken.code == 0
    assert "update" in spoken.out
    assert "machine's pace: 1.000 times as long" in spoken.out
    assert "nan" not in spoken.out


def test_import(run: Run, folder: Path) -> None:
    """A foreign profile becomes one of ours, which can be planned with."""
    figures = "forward_compute_time={0}, backward_compute_time={0}, activation_size=64.0, parameter_size=256.000"
    lines = [f"node{k} -- Linear(in=8) -- {figures.format(f'{k}.000')}" for k in (1, 2, 3)]
    Path("graph.txt").write_text("\n".join([*lines, "\tnode1 -- node2", "\tnode2 -- node3"]) + "\n")
    found = run("import", "pipedream", "graph.txt", "-o", "imported.json", "--json")
    assert found.code == 0, found.err
    assert found.json["path"] == "imported.json"
    assert len(found.json["layers"]) == 3
    assert ModelProfile.read("imported.json").layers[2].forward_s == (0.003,)


def test_papers(run: Run) -> None:
    """`hocket papers` lists each strategy with its source.

    Each idea has code, a page and a test that exist.
    """
    found = run("papers", "--json").json
    assert {row["strategy"] for row in found["strategies"]} == set(members())
    for row in found["ideas"]:
        assert [path for path in (*row["places"], row["docs"], row["test"]) if not (ROOT / path).exists()] == []
    told = run("papers").out
    assert all(paper in told for paper in ("PipeDream", "PTD-P", "Gavel", "DeepPool", "LIBRA", "Wavelet", "Harmony"))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("show gone.yaml", ("gone.yaml", "no such file")),
        ("show plam.yaml", ("Did you mean 'plan.yaml'",)),
        ("show profile.json", ("profile.json", "a profile", "a plan")),
        ("show binary", ("binary",)),
        ("show empty", ("empty", "a plan")),
        ("simulate cluster.yaml", ("cluster.yaml", "a plan")),
        ("simulate plan.yaml --trace no/t.json", ("no/t.json",)),
        ("check job.py", ("job.py",)),
        ("check plan.yaml --program plan.yaml", ("plan.yaml", "hocket program 1")),
        ("check plan.yaml --program binary", ("binary", "UTF-8")),
        ("plan cluster.yaml profile.json --batch 8", ("cluster.yaml", "a profile")),
        ("plan profile.json plan.yaml --batch 8", ("plan.yaml", "a cluster")),
        ("plan binary cluster.yaml --batch 8", ("binary", "a profile")),
        ("plan profile.json cluster.yaml --batch 0", ("found 0", ">= 1")),
        ("plan profile.json cluster.yaml --batch 8 -s gpip", ("'gpip'", "Did you mean 'gpipe'")),
        ("plan profile.json cluster.yaml --batch 8 -b 0", ("microbatch", "found 0")),
        ("plan profile.json cluster.yaml --batch 8 -b 9", ("microbatch", "found 9", "1 to 8 (the batch size)")),
        ("plan profile.json cluster.yaml --batch 8 -o no/p.yaml", ("no/p.yaml", "folder")),
        ("plan profile.json cluster.yaml --batch 8 -o .", ("a folder",)),
        ("profile job.py -o no/p.json", ("no/p.json", "folder")),
        ("profile gone.py", ("gone.py", "no such file", "make_job")),
        ("import pipdream profile.json", ("'pipdream'", "Did you mean 'pipedream'")),
        ("import pipedream profile.json", ("profile.json",)),
        ("compare gone.json profile.json", ("gone.json", "no such file")),
        ("compare profile.json profile.json", ("profile.json", "a trace")),
        ("links -n 0 -o new.yaml", ("workers", "found 0")),
        ("links -n 1000 -o new.yaml", ("workers", "found 1000", "at most 64")),
        ("demo -n 1", ("--workers", "found 1")),
        ("demo -n 65", ("--workers", "found 65", "at most 64")),
        ("demo --steps 0", ("--steps", "found 0", ">= 1")),
        ("demo --text gone.txt", ("gone.txt", "no such file", "a text to train on")),
        ("demo --text .", ("a folder", "a text to train on")),
        ("demo --text empty", ("empty", "found 0 bytes", "more than 2048 bytes")),
        ("demo -o job.py", ("job.py", "found a file", "a folder")),
        ("train gone.py plan.yaml", ("gone.py", "no such file")),
        ("train . plan.yaml", (".: found a folder", "make_job")),
        ("train plan.yaml plan.yaml", ("plan.yaml: found a file of data", "make_job")),
        ("profile profile.json", ("profile.json: found a file of data", "make_job")),
        ("train job.py profile.json", ("profile.json", "a plan")),
    ],
)
def test_one_clear_error(run: Run, folder: Path, command: str, words: tuple[str, ...]) -> None:
    """A mistake of the user gives one error line and exit code 2.

    The line names the place and the problem. Nothing else is printed, and nothing is written.
    """
    Path("binary").write_bytes(bytes(range(256)))
    Path("empty").touch()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found = run(*command.split())
    assert found.code == 2
    assert found.out == ""
    assert found.err.startswith("error: ")
    assert len(found.err.splitlines()) == 1
    for word in words:
        assert word in found.err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ({"memory": 1e9}, ("cluster.yaml: memory", "unknown key 'memory'", "memory_bytes")),
        ({"device_type": "v1000"}, ("cluster.yaml: device_type", "'v1000'", "v100")),
        ({"levels": []}, ("cluster.yaml: levels", "at least one")),
        ({"levels": "fast"}, ("cluster.yaml: levels", "'fast'")),
    ],
    ids=["unknown key", "unknown device", "no levels", "a word"],
)
def test_a_cluster_edited_into_nonsense(
    run: Run, folder: Path, edit: dict[str, object], words: tuple[str, ...]
) -> None:
    """The key is named, with what stands there and the nearest that would be right."""
    data = parse_yaml(Path("cluster.yaml").read_bytes(), "cluster")
    Path("cluster.yaml").write_text(write_yaml(data | edit))
    found = run("plan", "profile.json", "cluster.yaml", "--batch", 8)
    assert found.code == 2
    for word in words:
        assert word in found.err


def test_a_profile_of_another_model(run: Run, folder: Path) -> None:
    """Every command that opens the plan refuses it."""
    replace(ModelProfile.read("profile.json"), name="other").save("profile.json")
    for command in ("show", "check", "simulate"):
        found = run(command, "plan.yaml")
        assert found.code == 2
        assert "profile_digest" in found.err
        assert "Plan again" in found.err


@pytest.mark.parametrize(
    "command",
    [
        "frobnicate",
        "plan",
        "plan profile.json cluster.yaml",
        "plan profile.json cluster.yaml --batch many",
        "plan profile.json cluster.yaml --batch 8 --rows 0",
        "plan profile.json cluster.yaml --batch 8 --nonsense",
        "show plan.yaml --width wide",
        "train job.py plan.yaml --steps 2.5",
        "profile job.py -b one",
    ],
)
def test_wrong_options(run: Run, folder: Path, command: str) -> None:
    """Wrong commands, options and values give exit code 2.

    The error names the problem and the help option.
    """
    found = run(*command.split())
    assert found.code == 2
    assert found.out == ""
    assert "-h" in found.err
    assert "error" in found.err.lower()
    assert "Traceback" not in found.err


def test_help_and_version(run: Run) -> None:
    """Help names the commands; every command explains itself."""
    listed = run("--help")
    assert listed.code == 0
    for name in (
        "demo",
        "profile",
        "import",
        "links",
        "plan",
        "show",
        "check",
        "simulate",
        "train",
        "checkpoints",
        "export",
        "compare",
        "schema",
        "papers",
    ):
        assert name in listed.out
        told = run(name, "-h")
        assert told.code == 0
        assert "Usage" in told.out
    assert run("--version").out.startswith("hocket ")


def test_simulate_with_a_background_job(run: Run, folder: Path) -> None:
    """A simulation with a background job slows both jobs.

    The foreground and the background are slower than alone. The other figures are unchanged, in text and in JSON.
    """
    alone = run("simulate", "plan.yaml", "--json").json
    options = ("--background", "profile.json", "--background-batch", 1, "--launch-ms", 1)
    both = run("simulate", "plan.yaml", *options, "--json").json
    found = both.pop("background")
    assert {**both, "wall_s": 0} == {**alone, "wall_s": 0}
    assert found["excerpt"] == ""
    assert found["foreground_iteration_s_alone"] == pytest.approx(alone["iteration_s"])
    assert found["foreground_iteration_s"] >= found["foreground_iteration_s_alone"]
    assert found["foreground_slowdown"] == found["foreground_iteration_s"] / found["foreground_iteration_s_alone"]
    assert set(found["background_samples_per_s"]) == {"0", "1"}
    assert all(0 <= r < found["background_samples_per_s_alone"] for r in found["background_samples_per_s"].values())
    told = run("simulate", "plan.yaml", *options, "--idle-only", "--trace", "both.json").out
    assert set(read_trace("both.json").background) == {0, 1}
    assert "foreground is slower by" in told
    assert "background's pace" in told


def test_what_would_help_a_foreground_that_is_held_up(run: Run, folder: Path) -> None:
    """The output advises shorter launches for a delayed foreground.

    The pipeline has no collectives, and launches are as long as layers. The advised length has the stated effect.
    Pausing is not advised.
    """
    options = ("--background", "profile.json", "--background-batch", 4)
    slow = run("simulate", "plan.yaml", *options)
    assert "was lost to the backward of the background (launches of up to 80 ms)" in slow.out
    assert "--slowdown-limit" not in slow.out
    advised = re.search(r"with --launch-ms (\S+) it is (\S+)% slower", slow.out)
    assert advised is not None
    taken = run("simulate", "plan.yaml", *options, "--launch-ms", advised[1], "--json").json["background"]
    assert 100 * (taken["foreground_slowdown"] - 1) == pytest.approx(float(advised[2]), abs=0.05)
    assert taken["foreground_slowdown"] < 1.03
    gaps = run("simulate", "plan.yaml", *options, "--idle-only")
    assert "--idle-only changes nothing" in gaps.out  # every layer of this profile needs all of its device
    assert "launches begin only in gaps" not in slow.out + gaps.out  # with priority, layers do not share the device
    slowed = [re.search(r"foreground is slower by\s+(\S+)", one.out) for one in (slow, gaps)]
    assert slowed[0] is not None
    assert slowed[1] is not None
    assert slowed[0][1] == slowed[1][1]
    assert "launches begin only in gaps" in run("simulate", "plan.yaml", *options, "--idle-only", "--no-priority").out


def test_a_report_shows_the_background_job(run: Run, folder: Path) -> None:
    """The report shows the background job with the printed words.

    Its launches have a lane on each device. Without a background job, the report does not mention it.
    """
    assert run("simulate", "plan.yaml", "--report", "alone.html").code == 0
    options = ("--background", "profile.json", "--background-batch", 4, "--launch-ms", 20, "--report", "both.html")
    printed = run("simulate", "plan.yaml", *options)
    page = " ".join(documents.check(Path("both.html").read_text()).text)
    slower = re.search(r"foreground is slower by\s+(\S+)", printed.out)
    assert slower is not None
    for word in (
        "foreground is slower by",
        slower[1],
        "background's pace",
        "was lost to the backward of the background",
    ):
        assert word in page
    assert "Predicted with chain (profile.json) in the background" in page
    assert Path("both.html").read_text().count('class="background"') > 2
    assert "the background's launches" in page
    alone = " ".join(documents.check(Path("alone.html").read_text()).text)
    assert "background job" not in alone
    assert "predicted and measured" not in page


def test_a_plan_that_lends_devices_tells_its_amplification(run: Run, folder: Path) -> None:
    """A plan that lends devices shows its amplification.

    It is in the text and in the report beside the staircase. With a run, the measured amplification is shown too.
    """
    plan = Plan.read("plan.yaml")
    layers = tuple(layer.name for layer in ModelProfile.read("profile.json").layers)
    stages = (PlanStage(layers[:2], (0, 1)), PlanStage(layers[2:], (0,)))
    lends = replace(plan, strategy="burst_parallel", stages=stages, microbatch_size=4, options={}, predicted=None)
    lends.save("burst.yaml")
    told = run("simulate", "burst.yaml", "--report", "burst.html", "--trace", "run.json")
    found = re.search(r"amplification +(\d\.\d\d) \(device-seconds", told.out)
    assert found is not None
    assert f"Amplification: {found[1]} (device-seconds" in " ".join(
        documents.check(Path("burst.html").read_text()).text
    )
    trace = read_trace("run.json")
    save_trace(replace(trace, meta={**trace.meta, "source": "measured"}), "measured.json")
    both = f"{found[1]} planned, {found[1]} measured"
    assert both in run("simulate", "burst.yaml", "--measured", "measured.json", "--report", "burst.html").out
    assert f"Amplification: {both}" in " ".join(documents.check(Path("burst.html").read_text()).text)


def test_what_a_background_job_may_be(run: Run, folder: Path) -> None:
    """A plan for one device, or a profile with a batch size; its options need it."""
    for words, said in (
        (["--background", "plan.yaml"], "a plan for one device"),
        (["--background", "profile.json"], "--background-batch"),
        (["--background", "plan.yaml", "--background-batch", 1], "contains its batch size"),
        (["--idle-only"], "--background"),
        (["--background", "profile.json", "--background-batch", 1, "--outstanding", 0], "--outstanding: found 0"),
        (["--background", "profile.json", "--background-batch", 1, "--launch-ms", -1], "--launch-ms: found -1"),
        (
            ["--background", "profile.json", "--background-batch", 1, "--slowdown-limit", 0.5],
            "--slowdown-limit: found 0.5",
        ),
        (
            ["--background", "profile.json", "--background-batch", 5000],
            "--background-batch: found 5000; expected 1 to 8",
        ),
        (["--background", "profile.json", "--background-batch", 0], "--background-batch: found 0"),
    ):
        refused = run("simulate", "plan.yaml", *words)
        assert refused.code == 2
        assert said in refused.err
    plan = Plan.read("plan.yaml")
    layers = tuple(name for stage in plan.stages for name in stage.layers)
    replace(plan, strategy="data_parallel", stages=(replace(plan.stages[0], layers=layers, devices=(0,)),)).save(
        "one.yaml"
    )
    assert run("simulate", "plan.yaml", "--background", "one.yaml").code == 0


@pytest.mark.parametrize("option", ["--report", "--trace"])
@pytest.mark.parametrize("victim", ["plan.yaml", "profile.json", "job.py"])
def test_simulate_replaces_nothing_of_another_kind(run: Run, folder: Path, option: str, victim: str) -> None:
    """A report or trace replaces its like, and no plan, profile or job."""
    before = (folder / victim).read_bytes()
    found = run("simulate", "plan.yaml", option, victim)
    assert found.code == 2
    assert f"{victim}: found a file that is not a {option[2:]}" in found.err
    assert (folder / victim).read_bytes() == before
    for _ in range(2):
        assert run("simulate", "plan.yaml", option, "made").code == 0
