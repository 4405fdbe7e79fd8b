"""Outputs of commands, with all figures, equal to those that are kept.

A wrong sign, index or comparison anywhere between a profile and a report changes a figure here. After a change that is
meant, write them again with `pytest tests/cli/outputs --update-golden`, and read the difference.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from hocket.cli import main
from hocket.profiling.analytic.synthetic import chain
from hocket.strategies.base.strategy import members
from tests.cli.outputs.helpers.kept import differences, document, page
from tests.paths import EXAMPLES

KEPT = Path(__file__).parent
CLUSTER = """
name: lab
device_type: v100-16gb
{memory}levels:
  - {{name: server, width: 4, bandwidth_bytes_per_s: 1.0e10, latency_s: 1.0e-5}}
  - {{name: cluster, width: 2, bandwidth_bytes_per_s: 1.0e9, latency_s: 5.0e-5}}
"""
CHANGES = ("--bandwidth", "cluster=2x", "--memory", "-50%", "--rate", "2x", "--batch", "2x", "--devices", "4")
# Policies that need neither a budget, SLOs nor entities.
POLICIES = (
    "max_min_fairness",
    "fifo",
    "finish_time_fairness",
    "makespan",
    "water_filling",
    "max_sum_throughput",
    "allox",
    "isolated",
)
# Seconds that this machine took.
TOOK = re.compile(r"^(?:wall|search)_s: .*|(?<= in )[\d.]+ (?:ms|s|µs)(?=$| )", re.M)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a profile of unlike layers and two clusters, where commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # a narrow table leaves out columns
    profile = chain(
        6,
        forward_s=[0.01, 0.02, 0.015, 0.03, 0.01, 0.02],
        backward_s=[0.02, 0.04, 0.03, 0.05, 0.02, 0.03],
        activation_bytes=[4e6, 2e6, 8e6, 1e6, 3e6, 2e6],
        weights_bytes=[4e6, 8e6, 2e6, 6e7, 1e7, 4e6],
        stash_bytes=[2e7, 1e7, 4e7, 3e7, 2e7, 1e7],
        skips=[(0, 2)],
        microbatch_sizes=(1, 2, 4),
        device_type="v100-16gb",
        name="uneven",
    )
    (tmp_path / "profile.json").write_text(profile.to_json())
    (tmp_path / "cluster.yaml").write_text(CLUSTER.format(memory=""))
    (tmp_path / "tight.yaml").write_text(CLUSTER.format(memory="memory_bytes: 2.3e8\nhost_memory_bytes: 8.0e9\n"))
    return tmp_path


def outputs(commands: Sequence[Sequence[str]], pages: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What commands print, one after the other, then what report pages show."""
    found = []
    for words in commands:
        code, said = main(list(words)), capsys.readouterr().out
        assert code == 0, said
        shown = " ".join(Path(word).name if "/" in word else word for word in words)
        found.append(f"$ hocket {shown}\n{document(said) if '--json' in words else said}")
    found += [f"{name}:\n{page(Path(name).read_text())}" for name in pages]
    return "\n".join(line.rstrip() for line in TOOK.sub("SECONDS", "\n".join(found)).splitlines()) + "\n"


def check(name: str, found: str, update: bool) -> None:
    """Compare with what is kept, or keep it."""
    path = KEPT / name
    if update:
        path.parent.mkdir(exist_ok=True)
        path.write_text(found)
    differing = differences(path.read_text(), found)
    assert not differing, f"{name} is another than kept (--update-golden keeps the new one):\n" + "\n".join(differing)


@pytest.mark.parametrize("strategy", members())
def test_plans(strategy: str, lab: Path, capsys: pytest.CaptureFixture[str], update_golden: bool) -> None:
    """Search, proof, prediction and pictures of the fastest plan of each strategy."""
    cluster = "tight.yaml" if strategy == "harmony" else "cluster.yaml"
    commands = (
        ("plan", "profile.json", cluster, "-B", "32", "-s", strategy, "-o", "plan.yaml", "--candidates"),
        ("check", "plan.yaml"),
        ("show", "plan.yaml", "--width", "100"),
        ("simulate", "plan.yaml", "--report", "plan.html"),
        ("simulate", "plan.yaml", "--json"),
    )
    check(f"plans/{strategy}.txt", outputs(commands, ("plan.html",), capsys), update_golden)


def test_what_if(lab: Path, capsys: pytest.CaptureFixture[str], update_golden: bool) -> None:
    """Other links, memory, speeds, batches and numbers of devices, of one plan and together."""
    commands = (
        ("plan", "profile.json", "cluster.yaml", "-B", "32", "-o", "plan.yaml"),
        ("what-if", "plan.yaml", *CHANGES, "--replan"),
        ("what-if", "plan.yaml", *CHANGES[:4], "--combined", "--json"),
    )
    check("what_if.txt", outputs(commands, (), capsys), update_golden)


def test_by_sizes(lab: Path, capsys: pytest.CaptureFixture[str], update_golden: bool) -> None:
    """Models that are known by their sizes, with tensor parallelism and recomputation."""
    cluster = str(EXAMPLES / "clusters" / "a100-servers.yaml")
    commands = (
        ("plan", "gpt2-xl", cluster, "-B", "64", "--candidates", "-o", "plan.yaml"),
        ("plan", "bert-large", cluster, "-B", "512", "--tensor", "4", "--recompute", "full", "--json"),
        ("simulate", "plan.yaml"),
    )
    check("by_sizes.txt", outputs(commands, (), capsys), update_golden)


def test_scheduler(lab: Path, capsys: pytest.CaptureFixture[str], update_golden: bool) -> None:
    """One allocation of each policy, and a workload under three of them."""
    own = EXAMPLES / "own-cluster"
    files = (str(own / "jobs.json"), str(own / "workers.yaml"))
    snapshot = str(EXAMPLES / "snapshots" / "three-jobs.json")
    policies = ("-p", "max_min_fairness", "-p", "fifo", "-p", "finish_time_fairness", "-p", "max_min_fairness:agnostic")
    with_table = ("--throughputs", str(own / "throughputs.json"))
    commands = (
        *(("cluster", "solve", snapshot, "-p", name) for name in POLICIES),
        ("cluster", "compare", *files, *with_table, *policies, "--report", "compare.html"),
        ("cluster", "simulate", *files, *with_table, "--json"),
    )
    check("scheduler.txt", outputs(commands, ("compare.html",), capsys), update_golden)


def test_a_difference_is_a_word_a_mark_or_more_than_a_last_digit() -> None:
    """Texts and pages that look alike but are not."""
    assert not differences("a 1.00000000 b\n", "a 1.00000001 b\n")
    for other in ("a 1.001 b\n", "a -1.00000000 b\n", "a 1.00000000 c\n", "a 1.00000000\n", "a 1.00000000 b\nc\n"):
        assert differences("a 1.00000000 b\n", other)
    drawn = '<p>two &lt; three</p><svg><path class="f" d="M1 2V{}"/><text x="1">name</text></svg><script>1</script>'
    assert page(drawn.format(3)).startswith("two < three\n")
    for other in (drawn.format(4), drawn.format(3).replace("name", "other"), drawn.format(3).replace('"f"', '"b"')):
        assert differences(page(drawn.format(3)), page(other))
