"""`hocket plan` for a goal: options, output and the written plan."""

from pathlib import Path

import pytest

from hocket.hardware.cluster import Cluster
from hocket.planning.plan import Plan
from hocket.util.units import read_duration_s
from tests.cli.plan.test_plan import document, said
from tests.cli.plan.test_plan_model import folder  # noqa: F401  # a fixture
from tests.planning.mesh.test_layout import SERVERS

WORDS = ("plan", "gpt.yaml", "priced.yaml", "-B", "16", "-t", "1", "-t", "2", "--recompute", "none")


@pytest.fixture(autouse=True)
def _priced(folder: Path) -> None:  # noqa: F811
    text = SERVERS.to_yaml() + "price_usd_per_hour: 5.0\nprice_source: a price list of 2023\n"
    Path("priced.yaml").write_text(text)
    assert Cluster.read("priced.yaml").price_usd_per_hour == 5.0


def test_prices_and_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    """Output for prices and tokens.

    It has samples per dollar, the duration of the training and the closed form.
    """
    found = document(capsys, *WORDS, "--tokens", "81920000")
    goal, best = found["goal"], found["candidates"][0]
    assert (goal["objective"], goal["devices"], goal["samples"]) == ("time", 8, 160_000)
    assert goal["training_s"] == pytest.approx(10_000 * best["iteration_s"])
    assert goal["training_usd"] == pytest.approx(goal["training_s"] / 3600 * 40)
    assert goal["samples_per_usd"] == pytest.approx(160_000 / goal["training_usd"])
    assert goal["equation_4_4_s"] > 0
    text = said(capsys, *WORDS, "--tokens", "81920000")
    assert "samples for a dollar, at 40 USD an hour (a price list of 2023)" in text
    assert "training: 10,000 iterations in " in text
    assert "by equation 4.4" in text


def test_least_cost(capsys: pytest.CaptureFixture[str]) -> None:
    """The plan is for the part that is paid for; all parts are told."""
    found = document(capsys, *WORDS, "--objective", "cost", "-o", "plan.yaml")
    parts = found["goal"]["parts"]
    known = [part["worth"]["samples_per_usd"] for part in parts if part["worth"]]
    assert found["goal"]["samples_per_usd"] >= max(known) / 1.01
    assert [part["devices"] for part in parts] == [1, 2, 3, 4, 8]
    plan = Plan.read("plan.yaml")
    assert plan.cluster.devices == found["goal"]["devices"]
    assert plan.cluster.name == found["goal"]["cluster"]
    text = said(capsys, *WORDS, "--objective", "cost")
    assert "most samples per dollar: 5 parts of the cluster" in text
    assert "chosen" in text


def test_a_deadline(capsys: pytest.CaptureFixture[str]) -> None:
    """A deadline gives a plan with the fewest devices that meet it.

    If no plan meets it, the error has the best possible time. With all devices, the output says by how much the
    deadline is missed.
    """
    whole = document(capsys, *WORDS, "--samples", "160000")["goal"]["training_s"]
    asked = ("--samples", "160000", "--deadline", f"{1.6 * whole}s")
    goal = document(capsys, *WORDS, *asked)["goal"]
    assert 1 < goal["devices"] < 8
    assert goal["training_s"] <= 1.6 * whole
    assert {part["reason"] for part in goal["parts"] if part["devices"] < goal["devices"]} == {"too slow"}
    text = said(capsys, *WORDS, *asked)
    assert "fewest devices that meet the deadline" in text
    slow = [part["devices"] for part in goal["parts"] if part["reason"] == "too slow"]
    assert f"  too slow: {len(slow)} part" in text
    error = document(capsys, *WORDS, "--samples", "160000", "--deadline", f"{0.5 * whole}s", code=2)["error"]
    assert "at best, on servers" in error["found"]
    text = said(capsys, *WORDS, "--samples", "160000", "--deadline", f"{0.5 * whole}s", "--objective", "time")
    assert "deadline: missed, by " in text


def test_from_a_profile(capsys: pytest.CaptureFixture[str]) -> None:
    """A profile accepts the same options, except tokens."""
    words = ("plan", "profile.json", "priced.yaml", "-B", "16", "-s", "data_parallel", "-s", "flush")
    found = document(capsys, *words, "--objective", "cost", "--samples", "1600", "-o", "plan.yaml")
    assert Plan.read("plan.yaml").cluster.devices == found["goal"]["devices"]
    assert found["goal"]["training_usd"] > 0
    assert "most samples per dollar" in said(capsys, *words, "--objective", "cost")
    assert document(capsys, *words, "--tokens", "1e6", code=2)["error"]["place"] == "--tokens"


@pytest.mark.parametrize("text", ["30", "d", "-1d", "1y", "nand", "infs"])
def test_durations_that_are_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Told with an example."""
    error = document(capsys, *WORDS, "--samples", "1", "--deadline", text, code=2)["error"]
    assert (error["place"], error["expected"]) == ("--deadline", "a positive number and d, h, m or s, such as 30d")


def test_durations() -> None:
    """In seconds."""
    assert [read_duration_s(text, "") for text in ("30d", "1.5h", "2m", "4s")] == [2592000, 5400, 120, 4]
