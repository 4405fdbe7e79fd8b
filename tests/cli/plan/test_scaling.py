"""`hocket scaling`, from the command line to a report."""

from dataclasses import replace
from pathlib import Path

import pytest

from hocket.hardware.cluster import Cluster
from hocket.profiling.analytic.synthetic import chain
from tests.cli.plan.test_plan import document, said
from tests.cli.plan.test_plan_model import folder  # noqa: F401  # a fixture

CURVE = "name: loss 2\npoints: [{batch_size: 1, samples: 1e4}, {batch_size: 64, samples: 2e4}, {batch_size: 1024, samples: 9e4}]\n"
WORDS = ("scaling", "profile.json", "cluster.yaml", "curve.yaml", "-B", "16")


@pytest.fixture(autouse=True)
def _curve(folder: Path) -> None:  # noqa: F811
    Path("curve.yaml").write_text(CURVE)


def test_table_and_report(capsys: pytest.CaptureFixture[str]) -> None:
    """Table and report of scaling contain the same figures.

    They have all ways of scaling on powers of two of the devices, and other links beside them.
    """
    words = (*WORDS, "--bandwidth", "cluster=0.1x", "--report", "report.html")
    text = said(capsys, *words)
    assert "chain to loss 2, time and speedup" in text
    assert "speedup on 8 devices by the bandwidth of cluster" in text
    assert "20 Gbit/s" in text
    assert "by the bandwidth of cluster" in Path("report.html").read_text()
    found = document(capsys, *words)
    assert [row["devices"] for row in found["rows"] if row["way"] == "weak"] == [1, 2, 4, 8]
    assert [network["bytes_per_s"] for network in found["networks"]] == [2.5e9, 2.5e10]
    best = [row["seconds"] for row in found["rows"] if row["way"] == "batch-optimal"]
    assert best == sorted(best, reverse=True)


def test_models_by_their_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    """In the best mesh."""
    found = document(capsys, "scaling", "gpt.yaml", *WORDS[2:], "--devices", "1", "--devices", "4")
    assert {row["devices"] for row in found["rows"]} == {1, 4}
    assert max(row["speedup"] for row in found["rows"]) > 1.5


@pytest.mark.parametrize("words", [("--batch", "0"), ("--batch", "-2"), ("--devices", "0")])
def test_numbers_that_count_nothing(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Are refused by the option's name."""
    error = document(capsys, *WORDS, *words, code=2)["error"]
    assert (error["place"], error["found"], error["expected"]) == (*words, ">= 1")


def test_what_is_rough_or_cannot_be_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The output names rough times and the reasons for missing plans.

    Times of another device type are named as in `hocket plan`.
    """
    chain(4, device_type="cpu-core").save("profile.json")
    text = " ".join(said(capsys, *WORDS[:-1], "2").split())
    assert "note: measured on cpu-core, scaled to a100-80gb by their peak rates: rough" in text
    assert (
        "strong, a batch of 2 on 4 devices: no plan: found 2 samples left over; expected as many on each of 4" in text
    )
    notes = document(capsys, *WORDS[:-1], "2")["notes"]
    assert notes[0].startswith("measured on cpu-core")


def test_links_of_two_levels(capsys: pytest.CaptureFixture[str]) -> None:
    """Are refused."""
    words = ("--bandwidth", "cluster=2x", "--bandwidth", "server=2x")
    assert document(capsys, *WORDS, *words, code=2)["error"]["found"] == "levels cluster and server"


@pytest.mark.slow
def test_few_devices_without_room(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers of devices that cannot hold the model are left out, with a note in the text and in the document.

    Speedups are relative to the fewest of the others.
    """
    replace(Cluster.read("cluster.yaml"), memory_bytes=1.2e9).save("small.yaml")
    words = ("scaling", "gpt.yaml", "small.yaml", *WORDS[3:])
    found = document(capsys, *words)
    weak = [row for row in found["rows"] if row["way"] == "weak"]
    assert [row["devices"] for row in weak] == [2, 4, 8]
    assert weak[0]["speedup"] == 1
    assert found["rows"] == document(capsys, *words, "--devices", "2", "--devices", "4", "--devices", "8")["rows"]
    assert found["notes"][0].startswith("no plan on 1 device: found ")
    text = said(capsys, *words, "--report", "report.html")
    assert "note: no plan on 1 device: found " in text
    assert "against a batch of 32 on 2 devices" in text
    assert "no plan on 1 device" in Path("report.html").read_text()
    error = document(capsys, *words, "--devices", "1", code=2)["error"]
    assert error["found"].startswith("no plan on 1 device: ")
