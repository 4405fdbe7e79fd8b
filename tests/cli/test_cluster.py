"""The cluster's commands, from a generated workload to figures and a report."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

WORKERS = "workers:\n  - {name: v100, workers: 4, per_server: 4, price_usd_per_hour: 2}\n  - {name: k80, workers: 4}\n"


@pytest.fixture
def shared(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with workers.yaml, and jobs.json of twelve jobs."""
    monkeypatch.chdir(tmp_path)
    Path("workers.yaml").write_text(WORKERS)
    words = "cluster generate continuous-multiple --rate 20 --jobs 12 --seed 3 -o jobs.json"
    assert run(*words.split()).code == 0
    return tmp_path


def test_simulate_prints_the_figures(run: Run, shared: Path) -> None:
    """As the documentation promises them to programs."""
    told = run(*["cluster", "simulate", "jobs.json", "workers.yaml", "--json"])
    assert told.code == 0, told.err
    found = told.json
    assert found["finished"] == found["jobs"] == 12
    assert {"avg_jct_s", "makespan_s", "utilization", "cost_usd", "rounds", "preemptions", "wall_s"} <= set(found)
    assert 0 < found["utilization"] <= 1


def test_compare_lays_policies_side_by_side(run: Run, shared: Path) -> None:
    """A row each, the same jobs in all; and the same report to the byte from another run."""
    pages = []
    for name in ("one.html", "two.html"):
        told = run(
            *["cluster", "compare", "jobs.json", "workers.yaml", "-p", "fifo", "-p", "max_min_fairness"],
            *f"-p max_min_fairness:agnostic --report {name} --json".split(),
        )
        assert told.code == 0, told.err
        rows = told.json
        assert [row["policy"] for row in rows] == ["fifo", "max_min_fairness", "max_min_fairness (agnostic)"]
        assert {row["jobs"] for row in rows} == {12}
        pages.append(Path(name).read_bytes())
    assert pages[0] == pages[1]


def test_solve_says_what_each_job_gets_and_why(run: Run, shared: Path) -> None:
    """From a snapshot in the public format."""
    path = Path("snapshot.json")
    jobs = [
        {
            "id": k,
            "job_type": "A3C",
            "total_steps": 100,
            "num_steps_remaining": 50,
            "throughput": {"v100": 2.0 + k, "k80": 1.0},
        }
        for k in range(3)
    ]
    path.write_text(json.dumps({"worker_types": ["v100", "k80"], "cluster": {"v100": 1, "k80": 1}, "jobs": jobs}))
    told = run(*f"cluster solve {path} --policy max_min_fairness --json".split())
    assert told.code == 0, told.err
    found = told.json
    assert found["gap"] <= 1e-6
    assert {"objective", "allocation", "build_s", "solve_s", "reasons"} <= set(found)
    assert sum(row["fraction"] for row in found["allocation"] if row["on"] == "v100") <= 1 + 1e-9
    assert run("cluster", "solve", path).code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("simulate jobs.json workers.yaml -p fofi", "Did you mean 'fifo'?"),
        ("simulate jobs.json nothing.yaml", "no such file"),
        ("simulate workers.yaml workers.yaml", "workers.yaml"),
        ("compare jobs.json workers.yaml -p fifo:blind", "NAME:agnostic"),
        ("simulate jobs.json workers.yaml --first 3 --last 2", "--last"),
        ("solve jobs.json", "jobs.json"),
    ],
)
def test_bad_input_is_one_error(run: Run, shared: Path, words: str, told: str) -> None:
    """With exit code 2."""
    found = run("cluster", *words.split())
    assert found.code == 2
    assert told in found.err


def test_policies_are_listed(run: Run) -> None:
    """All that the room has."""
    found = run("cluster", "policies", "--json")
    assert "water_filling" in {row["policy"] for row in found.json}


def test_prices_of_the_sample(run: Run) -> None:
    """Without a folder the packaged sample; a moment can be chosen, and must be one."""
    found = run("cluster", "prices", "--at", "2020-03-10", "--json").json
    assert {row["accelerator"] for row in found["accelerators"]} == {"k80", "p100", "v100"}
    assert all(0 < row["cheapest_usd_per_hour"] <= row["dearest_usd_per_hour"] for row in found["accelerators"])
    assert run("cluster", "prices").code == 0
    assert run("cluster", "prices", "--at", "today").code == 2


def test_an_agnostic_run_is_named_so(run: Run, shared: Path) -> None:
    """Alone as among others."""
    assert run("cluster", "simulate", "jobs.json", "workers.yaml", "--agnostic", "--json").json["policy"] == (
        "max_min_fairness (agnostic)"
    )


def test_the_example_snapshot_is_the_dissertations(run: Run) -> None:
    """Section 5.4.1: its three jobs have some 10 % more than a third of each worker."""
    path = Path(__file__).parents[2] / "examples" / "snapshots" / "three-jobs.json"
    found = run("cluster", "solve", path, "--json").json
    assert found["objective"] / (2 / 3) == pytest.approx(1.09, abs=0.02)
