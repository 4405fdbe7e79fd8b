"""`hocket what-if`, and what `hocket plan` says of limits, help and refusals."""

from dataclasses import replace
from pathlib import Path

import pytest

from hocket.cli.plan.scenarios import factor_of
from hocket.errors import InputError
from hocket.hardware.change import SHARED
from hocket.hardware.cluster import Cluster, Level, Link
from hocket.planning.predict.feedback import RunFeedback
from hocket.planning.swapping.fit_host_link import on_links
from hocket.profiling.analytic.synthetic import chain
from hocket.util.files import digest
from tests.cli.plan.test_plan import document, said
from tests.cli.plan.test_plan_model import folder  # noqa: F401  # a fixture
from tests.planning.explain.test_what_if import HEAVY

SIZED = ("gpt.yaml", "cluster.yaml", "-B", "16")
PLAN = ("plan", *SIZED, "-t", "1", "-t", "2", "--recompute", "none")


@pytest.fixture(autouse=True)
def _here(folder: Path) -> None:  # noqa: F811
    """In a folder with a model, a cluster and a profile."""


def test_a_plan_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """`hocket plan` explains its plan.

    The explanation names the limits and the most helpful changes first, and refused plans on request. An option omits
    it.
    """
    text = said(capsys, *PLAN, "--candidates")
    assert "limits: of the critical path compute " in text
    assert "what would help: samples per second, against now" in text
    assert "server of twice the bandwidth" in text
    assert "10 % more memory" in text
    assert "more than the best" in " ".join(text.split())  # wherever a narrow table breaks it
    short = said(capsys, *PLAN, "--no-explain")
    assert "limits: " not in short
    assert "what would help" not in short
    found = document(capsys, *PLAN, "--candidates")
    shares = found["limits"]["critical_path"]
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert sum(shares.values()) == pytest.approx(1, abs=0.01)
    assert {one["question"] for one in found["what_if"]} >= {"a batch of twice the size", "devices of twice the rates"}
    assert any(one["missing_bytes"] == 0 for one in found["refused"])


def test_what_a_plan_cannot_be_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    """Another number of devices needs another plan.

    The output names --replan if it was not given.
    """
    said(capsys, "plan", "profile.json", "cluster.yaml", "-B", "16", "-s", "data_parallel", "-o", "plan.yaml")
    hint = "--replan plans again"
    text = said(capsys, "what-if", "plan.yaml", "--devices", "4")
    assert "the plan does not fit 4 devices" in text
    assert hint in text
    assert hint not in said(capsys, "what-if", "plan.yaml", "--devices", "4", "--replan")
    assert hint not in said(capsys, "what-if", "plan.yaml", "--bandwidth", "server=2x")


def test_a_profile_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """A plan from a profile is explained too."""
    words = (
        "plan",
        "profile.json",
        "cluster.yaml",
        "-B",
        "16",
        "-s",
        "data_parallel",
        "-s",
        "flush",
        "-o",
        "plan.yaml",
    )
    text = said(capsys, *words, "--candidates")
    assert "limits: of the critical path" in text
    assert "what would help" in text
    answers = document(capsys, "what-if", "plan.yaml", "--bandwidth", "cluster=2x", "--batch", "32", "--memory=-50%")[
        "answers"
    ]
    assert [one["question"] for one in answers] == ["bandwidth cluster=2x", "memory -50%", "batch 32"]
    assert answers[0]["same_plan"] >= 0
    both = document(capsys, "what-if", "plan.yaml", "--devices", "4", "--replan")["answers"][0]
    assert both["same_plan"] is None
    assert both["planned_anew"] < 0


@pytest.mark.slow
def test_questions_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option of what-if is a question about the model.

    Together they can be one question. Without options, the usual questions are asked. Nothing is written.
    """
    before = {path: path.read_bytes() for path in Path().iterdir()}
    words = ("what-if", *SIZED, "--bandwidth", "cluster=2x", "--latency", "server=0.5x", "--rate", "2x")
    words = (*words, "--devices", "16", "--device-type", "h100", "--batch", "2x")
    found = document(capsys, *words)
    assert [one["question"] for one in found["answers"]] == [
        "bandwidth cluster=2x",
        "latency server=0.5x",
        "rates 2x",
        "batch 2x",
        "16 devices",
        "devices of type h100",
    ]
    assert all(one["planned_anew"] is not None for one in found["answers"])
    one = document(capsys, *words, "--combined")["answers"]
    assert len(one) == 1
    assert one[0]["planned_anew"] > max(answer["planned_anew"] for answer in found["answers"])
    assert "10 % more memory" in said(capsys, "what-if", *SIZED)
    assert {path: path.read_bytes() for path in Path().iterdir()} == before


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ((*SIZED, "--bandwidth", "nvlink=2x"), "level"),
        ((*SIZED, "--bandwidth", "2x"), "--bandwidth"),
        ((*SIZED, "--memory", "10"), "--memory"),
        (("gpt.yaml", "cluster.yaml"), "--planned-batch"),
        ((*SIZED, "--memory", "2x", "--memory", "3x", "--combined"), "--combined"),
        ((*SIZED, "--bandwidth", "server=2x", "--bandwidth", "server=3x", "--combined"), "--combined"),
        ((*SIZED, "--combined"), "--combined"),
        ((*SIZED, "--device-type", "h1000"), "device type"),
        ((*SIZED[:3], "0"), "--planned-batch"),
        *(((*SIZED, option, count), option) for option in ("--devices", "--batch") for count in ("0", "-3")),
    ],
)
def test_what_is_asked_wrongly(words: tuple[str, ...], place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Told by its place; and a number that counts nothing with the least that does."""
    error = document(capsys, "what-if", *words, code=2)["error"]
    assert error["place"] == place
    assert words[-1] not in ("0", "-3") or (error["found"], error["expected"]) == (words[-1], ">= 1")


def test_what_nobody_asked_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """A question without known rates is left out unless it was asked.

    The rates of the device type may be unknown for the data type. A request for them gets an answer.
    """
    replace(chain(4, device_type="cpu-core"), dtype="bfloat16").save("profile.json")
    Cluster("two", (Level("server", 2, 1e9),), "cpu-core").save("cluster.yaml")
    text = said(capsys, "plan", "profile.json", "cluster.yaml", "-B", "8", "-s", "gpipe", "-o", "plan.yaml")
    assert "a batch of twice the size" in text
    assert "of twice the rates" not in text
    assert "no bfloat16 rate" in said(capsys, "what-if", "plan.yaml", "--rate", "2x")
    told = " ".join(said(capsys, "what-if", "plan.yaml", "--rate", "2x").split())
    assert "expected a known peak rate for bfloat16 of both device types" in told
    assert "of twice the rates" not in said(capsys, "what-if", "plan.yaml")


def test_a_plan_that_swaps_waits_for_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    """The host link limits a plan that swaps.

    A faster host link helps most. `what-if` accepts any other host link.
    """
    HEAVY.save("p.json")
    slow = Cluster("one", (Level("server", 2, 1e10),), "v100-16gb", 5e8, 9e9, host_link=Link(1e9))
    slow.save("cluster.yaml")
    text = said(capsys, "plan", "p.json", "cluster.yaml", "-B", "4", "-s", "harmony", "-o", "plan.yaml")
    assert "limits: of the critical path host link 9" in text
    rows = [line.strip() for line in text.partition("what if")[2].splitlines() if "%" in line]
    assert rows[0].startswith("host link of twice the bandwidth")
    answers = document(capsys, "what-if", "plan.yaml", "--host-link", "2x")["answers"]
    assert [one["question"] for one in answers] == ["host link 2x"]
    assert answers[0]["same_plan"] > 0.5
    assert "host link of twice the bandwidth" in said(capsys, "what-if", "plan.yaml")
    within = "swaps to the host: policy next_use, within 476.84 MiB of each device"
    assert within in said(capsys, "show", "plan.yaml")
    note = f"note: more memory is not used: the plan {within}; --replan plans again"
    for words, more in (
        (("--memory", "4x"), True),
        ((), True),
        (("--memory", "4x", "--replan"), False),
        (("--batch", "2x"), False),
    ):
        assert (note in " ".join(said(capsys, "what-if", "plan.yaml", *words).split())) == more, words


@pytest.mark.slow
def test_what_an_earlier_run_measured_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """Measured seconds and host links count as for `hocket plan`; --no-feedback disables this."""
    HEAVY.save("p.json")
    cluster = Cluster("one", (Level("server", 2, 1e10),), "v100-16gb", 5e8, 9e9, host_link=Link(1e9))
    cluster.save("cluster.yaml")
    words = ("p.json", "cluster.yaml", "-B", "4", "--no-feedback")
    before = document(capsys, "what-if", *words)["samples_per_s"]
    links = {SHARED: Link(1e8, 1e-3)}
    anywhere = digest(on_links(cluster, dict.fromkeys(links, Link(1.0))).to_yaml().encode())
    RunFeedback(HEAVY.name, HEAVY.digest, anywhere, "harmony", 50, 1.0, 1.0, {}, {}, 1.0, 1.0, links).save(
        "x.experience.yaml"
    )
    planned = document(capsys, "plan", *words[:-1])["candidates"][0]
    now = document(capsys, "what-if", *words[:-1])["samples_per_s"]
    assert now == pytest.approx(planned["samples_per_s"], rel=1e-6)
    assert now < before / 2
    assert document(capsys, "what-if", *words)["samples_per_s"] == before


def test_refusals_of_plans_that_swap(capsys: pytest.CaptureFixture[str]) -> None:
    """Refused plans that swap have a line of their own.

    It says what memory the host lacks. Plans of the same strategy without swaps have another line.
    """
    HEAVY.save("p.json")
    Cluster("one", (Level("server", 2, 1e10),), "v100-16gb", 5e8, 5e8).save("cluster.yaml")
    text = said(capsys, "plan", "p.json", "cluster.yaml", "-B", "4", "-s", "harmony", code=2)
    lines = [line.strip() for line in text.splitlines() if line.startswith("  refused: ")]
    assert [line.partition(": ")[2].partition(": ")[0] for line in lines] == [
        "harmony without swaps",
        "harmony with swaps",
    ]
    assert "the host of server 0 needs" in lines[1]
    assert "Give hosts more memory (host_memory_bytes: " in text


def test_factors() -> None:
    """Times, and per cent more or less."""
    assert [factor_of(text, "") for text in ("2x", "0.5x", "+10%", "-20%")] == [2, 0.5, pytest.approx(1.1), 0.8]
    for text in ("2", "x", "0x", "-100%", "10%", "nanx", "+inf%"):
        with pytest.raises(InputError):
            factor_of(text, "")
