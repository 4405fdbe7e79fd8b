"""`hocket plan` for an analytic model: from options to a plan file."""

from dataclasses import replace
from pathlib import Path

import pytest

from hocket.cli import main
from hocket.hardware.cluster import Cluster
from hocket.planning.plan import Plan
from hocket.profiling.analytic.synthetic import chain
from tests.cli.plan.test_plan import document, said
from tests.planning.mesh.test_layout import SERVERS

GPT = "layers: 6\nhidden: 1024\nheads: 16\nvocabulary: 8192\nsequence: 512\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a model, a cluster, and a profile."""
    monkeypatch.chdir(tmp_path)
    Path("gpt.yaml").write_text(GPT)
    SERVERS.save("cluster.yaml")
    chain(4, device_type="a100-80gb").save("profile.json")
    return tmp_path


def test_there_and_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan is written with its profile; show, check and simulate work on it."""
    words = ("-B", "16", "-t", "2", "--no-sequence-parallel", "-o", "plan.yaml")
    text = said(capsys, "plan", "gpt.yaml", "cluster.yaml", *words)
    assert "wrote plan.yaml and plan.profile.json" in text
    assert "ways to divide 8 devices" in text
    assert "time: compute" in text
    assert "runner-up: p" in text
    assert "config: p stages, t tensor-parallel size" in text
    assert Plan.read("plan.yaml").tensor == 2
    shown = said(capsys, "show", "plan.yaml")
    assert "groups of 2" in shown
    assert "group k is device 2 k and the 1 after it; stage boundaries are sent in parts" in shown
    assert "the file predicts" not in shown
    assert "legal for every number of periods" in said(capsys, "check", "plan.yaml")
    simulated = said(capsys, "simulate", "plan.yaml", "--report", "report.html")
    assert "sent inside of groups" in simulated
    assert "sent between groups" in simulated
    assert "groups of 2 devices" in Path("report.html").read_text()


@pytest.mark.parametrize("words", ["-s two_bw", "--stale", "-s gpipe"])
@pytest.mark.slow
def test_schedules_there_and_back(folder: Path, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Plans with stale weights and plans of GPipe can be written and read.

    The written plan is shown and legal, has the predicted time, and names the age of its weights. Goals and batches
    accept the same options.
    """
    stale = words != "-s gpipe"
    asked = ("plan", "gpt.yaml", "cluster.yaml", "-B", "16", *words.split())
    text = said(capsys, *asked, "-o", "plan.yaml")
    age = "two_bw computes gradients on weights 1 update old"
    assert (f"updates: {age}" in text) == stale
    assert "--stale would find" not in text
    plan = Plan.read("plan.yaml")
    assert plan.strategy == ("two_bw" if stale else "gpipe")
    assert (age if stale else "gpipe has the mathematics of one process") in said(capsys, "show", "plan.yaml")
    assert "legal for every number of periods" in said(capsys, "check", "plan.yaml")
    assert plan.predicted is not None
    taken = document(capsys, "simulate", "plan.yaml")["iteration_s"]
    assert taken == pytest.approx(plan.predicted.iteration_s)
    best = document(capsys, *asked, "--candidates")
    assert best["candidates"][0]["update_rule"]["updates_old"] == [int(stale)] * 2
    assert best["candidates"][0]["iteration_s"] == pytest.approx(taken)
    assert {one["strategy"] for one in best["refused"]} & ({"two_bw"} if stale else {"gpipe"})
    more = document(capsys, *asked, "--max-batch", "32", "--samples", "1e6", "--no-explain")
    assert more["candidates"][0]["samples_per_s"] >= best["candidates"][0]["samples_per_s"]
    few = document(capsys, *asked, "--samples", "1e6", "--deadline", "30d", "--no-explain")
    assert few["plan"]["strategy"] in (plan.strategy, "data_parallel")  # which is on one device
    answers = document(capsys, "what-if", "plan.yaml", "--bandwidth", "cluster=2x")["answers"]
    assert answers[0]["same_plan"] >= 0


@pytest.mark.slow
def test_what_old_weights_would_gain(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Told in a line where nobody asked, by as much as the search with them finds."""
    asked = ("plan", "gpt.yaml", "cluster.yaml", "-B", "16")
    exact, stale = document(capsys, *asked), document(capsys, *asked, "--stale")
    assert all(one["update_rule"]["same_as_one_process"] for one in exact["candidates"])
    gains = 1 - stale["candidates"][0]["iteration_s"] / exact["candidates"][0]["iteration_s"]
    assert exact["verdict"]["stale_gains"] == pytest.approx(gains)
    assert f"--stale would find {exact['verdict']['stale']}, which takes {gains:.1%} less; two_bw computes" in said(
        capsys, *asked
    )
    assert stale["verdict"]["stale"] == ""


def test_for_machines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Seconds and bytes, the best first; the plan is the best's."""
    found = document(capsys, "plan", "gpt.yaml", "cluster.yaml", "-B", "16", "-o", "plan.yaml")
    first = found["candidates"][0]
    assert first["iteration_s"] <= 1.01 * min(one["iteration_s"] for one in found["candidates"])
    assert first["samples_per_s"] == pytest.approx(16 / first["iteration_s"])
    assert first["share_of_peak"] == pytest.approx(first["teraflops_per_device"] / 312)
    assert first["tensor"] * first["depth"] * first["width"] == 8
    assert len(first["peak_memory_bytes"]) == first["depth"] * first["width"]
    assert found["search_s"] > 0
    assert 0 < found["simulated"] <= min(found["considered"], len(found["candidates"]))
    assert found["considered"] > found["too_large"]
    assert found["plan"]["predicted"]["iteration_s"] == pytest.approx(first["iteration_s"])
    simulated = document(capsys, "simulate", "plan.yaml")
    assert simulated["iteration_s"] == pytest.approx(first["iteration_s"])


def test_a_longer_sample(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Takes longer; beyond a model's learned positions it is refused."""
    words = ("plan", "gpt.yaml", "cluster.yaml", "-B", "16", "-t", "1", "--recompute", "none")
    short, long = (document(capsys, *words, *more) for more in ((), ("--sequence", "1024")))
    assert long["candidates"][0]["iteration_s"] > short["candidates"][0]["iteration_s"]
    Path("gpt.yaml").write_text(GPT + "positions: 512\n")
    assert document(capsys, *words, "--sequence", "1024", code=2)["error"]["place"] == "--sequence"


@pytest.mark.slow
def test_strategies_that_are_asked_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the requested strategies are searched.

    The numbers of considered plans add up. A model with tied weights has no fully sharded plan.
    """
    words = ("plan", "gpt.yaml", "cluster.yaml", "-B", "16")
    every = document(capsys, *words)
    counts = []
    for names in (("interleaved",), ("flush",), ("data_parallel",), ("flush", "data_parallel")):
        found = document(capsys, *words, *(word for name in names for word in ("-s", name)))
        assert {one["strategy"] for one in found["candidates"]} <= set(names)
        assert found["candidates"][0]["iteration_s"] >= every["candidates"][0]["iteration_s"] / 1.01
        counts.append(found["considered"])
    assert sum(counts[:3]) == every["considered"]
    assert counts[3] == counts[1] + counts[2]
    assert "weights tied" in document(capsys, *words, "-s", "fully_sharded", code=2)["error"]["found"]
    Path("gpt.yaml").write_text(GPT + "tied: false\n")
    found = document(capsys, *words, "-s", "fully_sharded", "-o", "plan.yaml")
    assert {one["shard"] for one in found["candidates"]} == {"full"}
    assert Plan.read("plan.yaml").strategy == "fully_sharded"
    assert "legal for every number of periods" in said(capsys, "check", "plan.yaml")


@pytest.mark.slow
def test_published_models_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The name will do; a name that is none is told with the nearest."""
    found = document(capsys, "plan", "gpt2-xl", "cluster.yaml", "-B", "16", "--recompute", "full")
    assert found["model"]["name"] == "gpt2-xl"
    error = document(capsys, "plan", "gpt2-xx", "cluster.yaml", "-B", "16", code=2)["error"]
    assert (error["place"], error["found"]) == ("model", "'gpt2-xx'")
    assert "gpt2-xl" in error["next_step"]


@pytest.mark.parametrize(
    ("words", "place", "found"),
    [
        ("gpt.yaml cluster.yaml -B 16 -s pipedream", "--strategy", "'pipedream'"),
        ("gpt.yaml cluster.yaml -B 16 -s two_bw --synchronous", "--strategy", "two_bw, an asynchronous strategy"),
        ("gpt.yaml cluster.yaml -B 16 --shard all", "--shard", "'all'"),
        ("profile.json cluster.yaml -B 16 --sequence 8", "--sequence", "this option with a profile"),
        ("profile.json cluster.yaml -B 16 -t 2", "--tensor", "this option with a profile"),
        ("profile.json cluster.yaml -B 16 --recompute full", "--recompute", "this option with a profile"),
        ("gpt.yaml cluster.yaml -B 16 -t 3", "--tensor", "3"),
        ("gpt.yaml cluster.yaml -B 16 -b 17", "--microbatch", "17"),
        ("gpt.yaml cluster.yaml -B 0", "--batch", "0"),
    ],
)
def test_options_that_make_no_sense(
    folder: Path, words: str, place: str, found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused with their name."""
    error = document(capsys, "plan", *words.split(), code=2)["error"]
    assert (error["place"], error["found"]) == (place, found)


def test_nothing_fits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One document with the reason and the nearest miss; nothing is written."""
    replace(Cluster.read("cluster.yaml"), memory_bytes=1e8).save("small.yaml")
    words = ("plan", "gpt.yaml", "small.yaml", "-B", "16", "-o", "plan.yaml")
    found = document(capsys, *words, code=2)
    assert found["candidates"] == []
    assert found["plan"] is None
    assert found["nearest_miss"]["at_least_bytes"] > 1e8
    assert "nothing that fits; nearest is p" in found["error"]["found"]
    assert "do not fit, 0 simulated" in said(capsys, *words, code=2)
    assert not list(folder.glob("plan*"))


@pytest.mark.slow
def test_it_is_the_same_each_time(folder: Path) -> None:
    """To the byte."""
    for name in ("a.yaml", "b.yaml"):
        assert main(["plan", "gpt.yaml", "cluster.yaml", "-B", "16", "-o", name]) == 0
    one, other = (Path(name).read_text().replace(f"{name[0]}.profile", "profile") for name in ("a.yaml", "b.yaml"))
    assert one == other
    assert Path("a.profile.json").read_text() == Path("b.profile.json").read_text()


def test_what_blocks_make_again_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`show` names the recomputation of a plan of an analytic model.

    It is read from the plan's profile. The rows of the drawing are groups if the plan has groups.
    """
    words = ("plan", "gpt.yaml", "cluster.yaml", "-B", "16", "-t", "2", "--recompute")
    for word, cell in (("full", " full in "), ("none", " no")):
        said(capsys, *words, word, "-o", "own.yaml")
        table, drawing = said(capsys, "show", "own.yaml").split("tensor-parallel: ")
        assert cell in table
        assert "\ngroup 0  stage" in drawing
        assert "the bubble of `hocket plan`" in drawing
