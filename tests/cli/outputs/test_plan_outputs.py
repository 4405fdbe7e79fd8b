"""Outputs of commands about plans, with all figures, equal to those that are kept.

A wrong sign, index or comparison anywhere between a profile and a report changes a figure here. After a change that is
meant, write them again with `pytest tests/cli/outputs --update-golden`, and read the difference.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from hocket.strategies.base.strategy import members
from tests.cli.outputs.helpers.lab import KEPT, lab, outputs
from tests.kept import check, differences, page
from tests.paths import EXAMPLES

CHANGES = ("--bandwidth", "cluster=2x", "--memory", "-50%", "--rate", "2x", "--batch", "2x", "--devices", "4")
PLAN = ("plan", "profile.json", "cluster.yaml", "-B", "32", "-o", "plan.yaml")
SERVERS = str(EXAMPLES / "clusters" / "a100-servers.yaml")


@pytest.fixture(autouse=True)
def _lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return lab(tmp_path, monkeypatch)


@pytest.mark.parametrize("strategy", members())
@pytest.mark.thinned(most=3)
def test_plans(strategy: str, capsys: pytest.CaptureFixture[str], update_golden: bool) -> None:
    """Search, proof, prediction and pictures of the fastest plan of each strategy."""
    cluster = "tight.yaml" if strategy == "harmony" else "cluster.yaml"
    commands = (
        ("plan", "profile.json", cluster, "-B", "32", "-s", strategy, "-o", "plan.yaml", "--candidates"),
        ("check", "plan.yaml"),
        ("show", "plan.yaml", "--width", "100"),
        ("simulate", "plan.yaml", "--report", "plan.html"),
        ("simulate", "plan.yaml", "--json"),
    )
    check(KEPT / f"plans/{strategy}.txt", outputs(commands, ("plan.html",), capsys), update_golden)


def test_what_if(capsys: pytest.CaptureFixture[str], update_golden: bool) -> None:
    """Other links, memory, speeds, batches and numbers of devices, of one plan and together."""
    commands = (
        PLAN,
        ("what-if", "plan.yaml", *CHANGES, "--replan"),
        ("what-if", "plan.yaml", *CHANGES[:4], "--combined", "--json"),
    )
    check(KEPT / "planning/what_if.txt", outputs(commands, (), capsys), update_golden)


SEARCHES: dict[str, Sequence[Sequence[str]]] = {
    "goals": (
        ("plan", "profile.json", "priced.yaml", "-B", "32", "--objective", "cost", "--samples", "1e6", "--json"),
        ("plan", "profile.json", "priced.yaml", "-B", "32", "--deadline", "12h", "--samples", "1e6"),
        (*PLAN, "--max-batch", "128", "--candidates"),
        ("what-if", "plan.yaml", "--batch", "2x"),
    ),
    "amplification": (
        (*PLAN, "--amplification-limit", "1.5", "--candidates"),
        ("simulate", "plan.yaml"),
    ),
    "paging": (
        (
            "plan",
            "profile.json",
            "tight.yaml",
            "-B",
            "16",
            "--swap",
            "lru",
            "-s",
            "data_parallel",
            "--candidates",
            "-o",
            "plan.yaml",
        ),
        ("simulate", "plan.yaml", "--json"),
        (
            "plan",
            "profile.json",
            "tight.yaml",
            "-B",
            "16",
            "--swap",
            "next_use",
            "-s",
            "data_parallel",
            "-o",
            "plan.yaml",
        ),
        ("what-if", "plan.yaml", "--memory", "+20%"),
    ),
    "buckets": tuple(
        (*PLAN, "-s", "data_parallel", "--buckets", buckets, "--shard", shard, "--candidates")
        for buckets in ("default", "2MB")
        for shard in ("none", "optimizer", "full")
    ),
    "stale": (
        (*PLAN, "--stale", "--candidates", "--rows", "40"),
        ("scaling", "profile.json", "cluster.yaml", str(EXAMPLES / "curves" / "images.yaml"), "--report", "page.html"),
    ),
    "by_sizes": (
        ("plan", "gpt2-xl", SERVERS, "-B", "64", "--candidates", "-o", "plan.yaml"),
        ("plan", "bert-large", SERVERS, "-B", "512", "--tensor", "4", "--recompute", "full", "--json"),
        ("plan", "mixtral-8x7b", SERVERS, "-B", "512", "--tensor", "2", "--recompute", "full"),
        ("simulate", "plan.yaml"),
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.slow) if one == "goals" else one for one in SEARCHES]
)
@pytest.mark.thinned(most=2)
def test_searches(name: str, capsys: pytest.CaptureFixture[str], update_golden: bool) -> None:
    """Plans for other goals than the fastest iteration, under limits, and of models that are known by their sizes."""
    pages = ("page.html",) if any("--report" in words for words in SEARCHES[name]) else ()
    check(KEPT / f"planning/{name}.txt", outputs(SEARCHES[name], pages, capsys), update_golden)


def test_a_difference_is_a_word_a_mark_or_more_than_a_last_digit() -> None:
    """Texts and pages that look alike but are not."""
    assert not differences("a 1.00000000 b\n", "a 1.00000001 b\n")
    for other in ("a 1.001 b\n", "a -1.00000000 b\n", "a 1.00000000 c\n", "a 1.00000000\n", "a 1.00000000 b\nc\n"):
        assert differences("a 1.00000000 b\n", other)
    drawn = '<p>two &lt; three</p><svg><path class="f" d="M1 2V{}"/><text x="1">name</text></svg><script>1</script>'
    assert page(drawn.format(3)).startswith("two < three\n")
    for other in (drawn.format(4), drawn.format(3).replace("name", "other"), drawn.format(3).replace('"f"', '"b"')):
        assert differences(page(drawn.format(3)), page(other))
