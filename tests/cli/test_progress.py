"""What long commands say of where they are."""

import threading
from pathlib import Path

import pytest

from hocket.cli.progress import Lines, Progress
from hocket.hardware.cluster import Cluster
from hocket.plan.goal import Goal
from hocket.plan.sized_goal import plan_sizes
from hocket.profile.sizes import published

CLUSTER = Path(__file__).parents[2] / "examples" / "clusters" / "a100-servers.yaml"


def test_where_there_is_no_terminal_a_line_comes_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes while nothing is reported, too, and each says where it is."""
    written, twice = list[str](), threading.Event()

    class Err:
        def isatty(self) -> bool:
            return False

        def write(self, text: str) -> None:
            written.append(text)
            if "".join(written).count("\n") >= 2:
                twice.set()

        def flush(self) -> None:
            pass

    monkeypatch.setattr("hocket.cli.progress.EVERY_S", 0.001)
    monkeypatch.setattr("sys.stderr", Err())
    with Progress("planning", True) as report:
        report(3, 12, "flush")
        assert twice.wait(60)
    said = "".join(written)
    assert all(line.startswith("planning: ") for line in said.splitlines())
    assert "planning: flush, 25% done after " in said


def test_what_is_short_and_what_is_for_machines_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """The first line comes after some time."""
    with Progress("planning", True) as report:
        report(0, 2, "gpipe")
    with Progress("planning", False) as report:
        assert report is None
    assert capsys.readouterr() == ("", "")


def test_a_line_says_what_is_known() -> None:
    """The title, what is looked at, how much of it is done, and for how long."""
    seconds = iter([0.0, 10.0, 20.0, 150.0])
    lines = Lines("planning", every_s=1e6, clock=lambda: next(seconds))
    lines.start()
    assert lines.line() == "planning: after 10 s"
    lines.report(0, 0, "ways to divide 8 devices")
    assert lines.line() == "planning: ways to divide 8 devices, after 20 s"
    lines.report(120, 1000, "flush")
    assert lines.line() == "planning: flush, 12% done after 2.5 min"
    lines.stop()


def test_a_search_by_sizes_says_what_it_looks_at() -> None:
    """It knows no share of what is done."""
    said: list[tuple[float, float, str]] = []
    cluster = Cluster.read(CLUSTER)
    plan_sizes(
        published("gpt2-xl"), cluster, 128, Goal(), lambda *one: said.append(one), tensors=(1,), shards=("none",)
    )
    assert said == [(0, 0, f"ways to divide {cluster.devices} devices for a batch of 128")]
