"""The cluster's commands, from a generated workload to figures and a report."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from hocket.cli.cluster.environment import References
from hocket.scheduler.core.events import Event
from hocket.scheduler.estimator.simulated_estimates import Estimating
from hocket.scheduler.journal.journal import Journal
from tests.cli.conftest import Result, Run


def ask(run: Run, words: str) -> Result:
    """One of the cluster's commands."""
    return run("cluster", *words.split())


def test_simulate_prints_the_figures(run: Run, shared: Path) -> None:
    """Simulation figures in JSON have the documented keys."""
    told = run(*["cluster", "simulate", "jobs.json", "workers.yaml", "--json"])
    assert told.code == 0, told.err
    found = told.json
    assert found["finished"] == found["jobs"] == 12
    assert {"avg_jct_s", "makespan_s", "utilization", "cost_usd", "rounds", "preemptions"} <= set(found)
    assert 0 < found["utilization"] <= 1


def test_compare_lays_policies_side_by_side(run: Run, shared: Path) -> None:
    """A comparison has one row for each policy, over the same jobs.

    A second run writes the same bytes of the report.
    """
    pages = []
    for name in ("one.html", "two.html"):
        told = run(
            *["cluster", "compare", "jobs.json", "workers.yaml", "-p", "fifo", "-p", "max_min_fairness"],
            *f"-p max_min_fairness:agnostic --round 3600 --report {name} --json".split(),
        )
        assert told.code == 0, told.err
        rows = told.json
        assert [row["policy"] for row in rows] == ["fifo", "max_min_fairness", "max_min_fairness (agnostic)"]
        assert {row["jobs"] for row in rows} == {12}
        pages.append(Path(name).read_bytes())
    assert pages[0] == pages[1]


def test_solve_says_what_each_job_gets_and_why(run: Run, shared: Path) -> None:
    """From a snapshot in the public format."""
    told = ask(run, "solve snapshot.json --policy max_min_fairness --json")
    assert told.code == 0, told.err
    found = told.json
    assert found["gap"] <= 1e-6
    assert {"objective", "allocation", "reasons"} <= set(found)
    assert sum(row["fraction"] for row in found["allocation"] if row["on"] == "v100") <= 1 + 1e-9
    assert run("cluster", "solve", "snapshot.json").code == 0


def test_solve_shows_what_would_change_it_where_there_is_room(
    run: Run, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`solve` shows possible improvements, or says that there are none."""
    monkeypatch.setenv("COLUMNS", "160")
    wide = ask(run, "solve snapshot.json").out
    assert "what would give it more" in wide
    assert "a wider terminal" not in wide
    monkeypatch.setenv("COLUMNS", "60")
    assert (
        "a wider terminal shows what would give it more as well; so does --json, as `change`"
        in ask(run, "solve snapshot.json").out
    )


@pytest.mark.slow
def test_types_without_a_price_are_named_below_the_table_once(run: Run, shared: Path) -> None:
    """Types without a price are named once in text, report and JSON.

    If all types have a price, there is no such note.
    """
    words = "compare jobs.json workers.yaml -p fifo -p max_min_fairness --report page.html"
    assert "no price" not in ask(run, words).out
    text = Path("workers.yaml").read_text()
    Path("workers.yaml").write_text(text.replace(", price_usd_per_hour: 0.5", ""))
    assert ask(run, words).out.count("no price for k80: counted as 0") == 1
    assert Path("page.html").read_text().count("<b>all policies</b>: no price for k80: counted as 0") == 1
    told = ask(run, "simulate jobs.json workers.yaml --json").json
    assert told["notes"] == ["no price for k80: counted as 0"]


@pytest.mark.slow
def test_least_cost_with_deadlines_says_that_there_are_none(run: Run, shared: Path) -> None:
    """A note says that a least-cost policy found no deadlines.

    This holds for a workload and a snapshot. If there are deadlines, there is no note.
    """
    both = ask(run, "compare jobs.json workers.yaml -p min_cost -p min_cost_slo").out
    assert "min_cost_slo: no job has an SLO, so the policy is the same as min_cost" in both
    assert (
        "note: no job has an SLO, so the policy is the same as min_cost"
        in ask(run, "solve snapshot.json -p min_cost_slo").out
    )
    told = ask(run, "solve snapshot.json -p min_cost_slo --json").json
    assert told["note"] == "no job has an SLO, so the policy is the same as min_cost"
    assert ask(run, "generate continuous-single --rate 20 --jobs 3 --slos -o late.json").code == 0
    assert ask(run, "simulate late.json workers.yaml -p min_cost_slo --json").json["notes"] == []


def test_the_group_alone_shows_its_commands(run: Run) -> None:
    """`hocket cluster` prints its help, as `hocket` does."""
    found = run("cluster")
    assert found.code == 2
    assert "Usage: hocket cluster" in found.out + found.err
    assert "policies  List the scheduling policies" in found.out + found.err


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


def test_entities_of_a_workload_count(run: Run, shared: Path) -> None:
    """Entities of a workload share the worker by their weights.

    Two teams have one job each on one worker. The team with eight times the weight has the worker nearly always until
    its job is finished.
    """
    work = {"job_type": "ResNet-50 (batch size 32)", "steps": 1e5}
    names = ("research", "product")
    jobs = [{"id": name, **work, "entity": name} for name in names]
    teams = [{"name": "research", "weight": 1.0, "policy": "fifo"}, {"name": "product", "weight": 8.0}]
    document = {"format": "hocket-workload-1", "entities": teams, "jobs": jobs}
    Path("teams.json").write_text(json.dumps(document), encoding="utf-8")
    Path("one.yaml").write_text("workers: [{name: v100, workers: 1}]", encoding="utf-8")
    found = run(
        "cluster", "simulate", "teams.json", "one.yaml", "-p", "hierarchical", "--journal", "j.log", "--json"
    ).json
    document["entities"] = []
    Path("teams.json").write_text(json.dumps(document), encoding="utf-8")
    alike = run("cluster", "simulate", "teams.json", "one.yaml", "-p", "hierarchical", "--json").json
    assert found["makespan_s"] == pytest.approx(alike["makespan_s"])
    assert found["avg_jct_s"] < 0.9 * alike["avg_jct_s"]
    assert run("cluster", "replay", "j.log").code == 0


@pytest.mark.slow
def test_an_agnostic_run_is_named_so(run: Run, shared: Path) -> None:
    """Alone as among others."""
    assert run("cluster", "simulate", "jobs.json", "workers.yaml", "--agnostic", "--json").json["policy"] == (
        "max_min_fairness (agnostic)"
    )


def test_the_example_snapshot_is_the_dissertations(run: Run) -> None:
    """Section 5.4.1: its three jobs have some 10 % more than a third of each worker."""
    path = Path(__file__).parents[3] / "examples" / "snapshots" / "three-jobs.json"
    found = run("cluster", "solve", path, "--json").json
    assert found["objective"] / (2 / 3) == pytest.approx(1.09, abs=0.02)


def test_workloads_are_drawn_of_a_table_without_v100(run: Run, shared: Path) -> None:
    """A workload can be generated from throughputs without a V100.

    Durations are drawn for the table's first type. Two tables with the same figures give the same jobs.
    """
    made = []
    for name in ("v100", "h100"):
        Path("table.json").write_text(json.dumps({name: {"('A3C', 1)": {"null": 2.0}}}))
        assert ask(run, "generate continuous-single --jobs 5 --throughputs table.json -o made.json").code == 0
        made.append(Path("made.json").read_text())
    assert made[0] == made[1]


def test_how_many_workers_are_in_use_is_told(run: Run) -> None:
    """The number of workers in use is printed for each type."""
    path = Path(__file__).parents[3] / "examples" / "snapshots" / "three-jobs.json"
    assert "in use: 1.0 of 1 v100, 1.0 of 1 k80" in run("cluster", "solve", path).out


def test_the_workers_of_a_pair_are_in_use_once(run: Run, shared: Path) -> None:
    """Never more than there are, and those of jobs of several workers are all of them."""
    told = ask(run, "solve snapshot.json --space-sharing").out
    used = re.findall(r"([0-9.]+) of ([0-9]+) (v100|k80)", told.partition("in use: ")[2])
    assert len(used) == 2
    assert sum(float(part) for part, _, _ in used) > 0
    assert all(float(part) <= float(whole) for part, whole, _ in used)


def test_the_example_of_a_cluster_of_ones_own_runs_as_the_page_says(run: Run) -> None:
    """Jobs, workers and throughputs that are written by hand, under three policies."""
    folder = Path(__file__).parents[3] / "examples" / "own-cluster"
    page = (folder.parents[1] / "docs" / "how-to" / "share-a-cluster.md").read_text()
    (words,) = re.findall(r"^cd examples/own-cluster\nhocket (.*)$", page, re.M)
    files = [str(folder / word) if (folder / word).exists() else word for word in words.split()]
    found = run(*files, "--json").json
    assert [one["finished"] for one in found] == [10, 10, 10]
    by_policy = {one["policy"]: one for one in found}
    assert min(by_policy, key=lambda name: by_policy[name]["cost_usd"]) == "min_cost"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "simulate jobs.json workers.yaml --round 3600 --report one.html",
        "compare jobs.json workers.yaml -p fifo -p gandiva --space-sharing --round 3600 --seed 5 --json",
        "simulate jobs.json workers.yaml -p water_filling --round 3600 --json",
        "solve snapshot.json",
        "solve snapshot.json --json",
        "generate static-single --jobs 9 --seed 2 -o /dev/stdout",
        "policies",
        "prices",
    ],
)
def test_two_runs_are_identical_to_the_byte(run: Run, shared: Path, words: str) -> None:
    """Two runs have identical output and reports."""
    told = []
    for _ in range(2):
        found = ask(run, words)
        assert found.code == 0, found.err
        page = Path("one.html")
        told.append((found.out, page.read_bytes() if page.exists() else b""))
    assert told[0] == told[1]


def test_times_are_told_if_asked_for(run: Run, shared: Path) -> None:
    """By the commands that compute for long."""
    assert ask(run, "simulate jobs.json workers.yaml --jobs 2 --times --json").json["wall_s"] > 0
    assert ask(run, "compare jobs.json workers.yaml -p fifo --jobs 2 --times --json").json[0]["wall_s"] > 0
    assert ask(run, "solve snapshot.json --times --json").json["solve_s"] > 0
    assert " took" in ask(run, "simulate jobs.json workers.yaml --jobs 2 --times").out
    assert " took" not in ask(run, "simulate jobs.json workers.yaml --jobs 2").out


def test_a_journal_replays_to_the_state_that_it_was_written_in(run: Run, shared: Path) -> None:
    """A journal replays to the state in which it was written.

    This also holds up to a truncated record, which is reported. Only the journal is needed.
    """
    words = "simulate jobs.json workers.yaml -p fifo --space-sharing --round 3600 --journal journal.log"
    assert "wrote journal.log" in ask(run, words).out
    whole = run("cluster", "replay", "journal.log", "--json").json
    assert (whole["policy"], whole["torn_bytes"]) == ("fifo", 0)
    assert whole["state"]["jobs"] == {}
    assert whole["events"] > 24
    Path("journal.log").write_bytes(Path("journal.log").read_bytes()[:-7])
    torn = run("cluster", "replay", "journal.log", "--json").json
    assert torn["events"] == whole["events"] - 1
    assert len(torn["state"]["jobs"]) == 1
    shown = run("cluster", "replay", "journal.log").out
    assert "jobs left" in shown
    assert f"journal.log, line {whole['events'] + 1}: the record is cut off" in shown
    lines = Path("journal.log").read_bytes().splitlines(keepends=True)
    Path("journal.log").write_bytes(b"".join(lines[: len(lines) // 2]))
    figures, one = (run("cluster", "replay", "journal.log", "--rows", rows).out for rows in (100, 1))
    leases = int(figures.splitlines()[4].split()[-1])
    assert leases > 1
    assert "more; --rows" not in figures
    assert f"and {leases - 1} more; --rows shows them" in one


def test_a_simulation_that_cannot_be_leaves_no_journal(run: Run, shared: Path) -> None:
    """A refused simulation leaves no journal.

    If the name is taken, the existing file is unchanged.
    """
    words = "simulate jobs.json workers.yaml -p makespan_budget --budget-usd 0 --journal journal.log"
    assert ask(run, words).code == 2
    assert not Path("journal.log").exists()
    Path("journal.log").write_text("precious")
    assert ask(run, "simulate jobs.json workers.yaml --journal journal.log").code == 2
    assert Path("journal.log").read_text() == "precious"


def test_a_budget_goes_with_its_policy(run: Run, shared: Path) -> None:
    """For one moment as for a whole trace: the less money, the later."""
    words = "solve snapshot.json -p makespan_budget --json --budget-usd"
    rich, poor = (ask(run, f"{words} {usd}").json["objective"] for usd in (1000, 0.022))
    assert poor > rich


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize(
    "words",
    [
        "compare jobs.json workers.yaml -p fifo -p max_min_fairness:agnostic --jobs 3",
        "solve snapshot.json",
        "policies",
        "prices",
        "replay journal.log",
    ],
)
def test_tables_fit_the_terminal(
    run: Run, shared: Path, monkeypatch: pytest.MonkeyPatch, words: str, columns: int
) -> None:
    """No table is wider; what had no room is named."""
    assert ask(run, "simulate jobs.json workers.yaml --jobs 3 --journal journal.log").code == 0
    monkeypatch.setenv("COLUMNS", str(columns))
    found = ask(run, words)
    table = [line for line in found.out.splitlines() if not line.startswith(("  note: ", "  a wider"))]
    assert max(map(len, table)) <= columns
    if words.startswith("compare"):
        assert "a wider terminal shows" in found.out
        assert "SLOs missed" not in found.out  # no job has one


@pytest.mark.slow
def test_progress_is_shown_on_a_terminal(run: Run, shared: Path, told: list[tuple[float, float, str]]) -> None:
    """A terminal shows the number of finished jobs by policy.

    JSON output shows no progress.
    """
    ask(run, "compare jobs.json workers.yaml -p fifo -p isolated --round 3600")
    assert [done for done, _, _ in told] == list(range(1, 25))
    assert {total for _, total, _ in told} == {24}
    assert told[-1][2] == "isolated, 12 jobs finished"
    told.clear()
    ask(run, "simulate jobs.json workers.yaml --json")
    assert not told


def test_policies_say_what_they_are_for(run: Run) -> None:
    """Each of them."""
    assert all(row["purpose"] and row["paper"] for row in run("cluster", "policies", "--json").json)


def test_generate_tells_machines_what_it_wrote(run: Run, shared: Path) -> None:
    """The JSON of `generate` names the written file."""
    found = ask(run, "generate static-multiple --jobs 3 --seed 9 -o made.json --json").json
    assert found == {"output": "made.json", "jobs": 3, "origin": "static, several workers, seed 9"}


def test_prices_are_of_a_moment_that_is_known(run: Run) -> None:
    """A time before the first price is refused.

    After the last price, the output says that prices are assumed to be constant.
    """
    found = ask(run, "prices --at 1800-01-01")
    assert (found.code, found.out) == (2, "")
    assert "--at: found 1800-01-01 00:00 UTC; expected a moment from 2020-02-2" in found.err
    assert "assumed to stay constant" in ask(run, "prices --at 2030-01-01").out


def test_who_is_refused_is_told_why(run: Run, shared: Path) -> None:
    """A refused job has a reason, and the other jobs finish."""
    Path("workers.yaml").write_text("workers:\n  - {name: v100, workers: 2, per_server: 2}\n")
    words = "simulate jobs.json workers.yaml --round 3600"
    found = ask(run, f"{words} --json").json
    assert 0 < found["refused"] == len(found["refusals"]) < 12 == found["jobs"]
    assert found["finished"] == 12 - found["refused"]
    name, why = next(iter(found["refusals"].items()))
    assert why
    shown = ask(run, words).out
    assert f"such as job {name}: {why}" in shown


def test_without_a_finished_job_no_time_is_shown(run: Run, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a finished job, times are dashes in the table and null in JSON, not 0."""
    monkeypatch.setenv("COLUMNS", "200")
    job = {"id": "big", "job_type": "ResNet-18 (batch size 16)", "scale_factor": 4, "steps": 400_000}
    Path("big.json").write_text(json.dumps({"format": "hocket-workload-1", "origin": "by hand", "jobs": [job]}))
    Path("few.yaml").write_text("workers:\n- {name: v100, workers: 2, per_server: 2}\n")
    found = ask(run, "simulate big.json few.yaml --json").json
    assert (found["finished"], found["refused"]) == (0, 1)
    assert {found[name] for name in ("avg_jct_s", "makespan_s", "avg_rho", "max_rho", "avg_queueing_s")} == {None}
    assert set(found["jct_percentiles_s"].values()) == {None}
    row = next(line for line in ask(run, "simulate big.json few.yaml").out.splitlines() if "0/1" in line)
    assert row.split()[1:6] == ["0/1", "-", "-", "-", "-"]


def test_the_number_of_references_that_is_told_is_the_default() -> None:
    """The help of --references names the number that estimates have without it."""
    (option,) = get_args(References)[1:]
    assert option.help.endswith(f"default {Estimating(pairs=1).references}.")


def test_an_interrupted_simulation_leaves_its_events(run: Run, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that replays, and nothing else."""
    events, record = [], Journal.record

    def interrupted(self: Journal, event: Event, now_s: float) -> None:
        record(self, event, now_s)
        events.append(event)
        if len(events) == 30:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "record", interrupted)
    before = set(Path().iterdir())
    found = ask(run, "simulate jobs.json workers.yaml --report page.html --journal journal.log")
    assert (found.code, found.out) == (130, "")
    assert set(Path().iterdir()) - before == {Path("journal.log")}
    assert ask(run, "replay journal.log --json").json["events"] == 30


@pytest.mark.slow
@pytest.mark.parametrize("words", ["cluster solve missing.json --json", "cluster solve --no-such-option --json"])
def test_an_error_is_told_though_its_json_is_not_taken(words: str) -> None:
    """On a full disk, and if the reader has left, the error on standard error stays."""
    command = [sys.executable, "-m", "hocket", *words.split()]
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=buffered, check=False)
    assert found.returncode == 2
    assert words.split()[2] in found.stderr
    assert "Exception" not in found.stderr
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=buffered) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == found.stderr
        assert process.wait() == 2


@pytest.mark.parametrize("words", ["policies", "prices --json", "solve snapshot.json"])
@pytest.mark.thinned(most=1)
def test_output_that_nobody_takes(run: Run, shared: Path, words: str) -> None:
    """A full disk is one error; a reader who has seen enough is none."""
    command = [sys.executable, "-m", "hocket", "cluster", *words.split()]
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=buffered, check=False)
    assert (found.returncode, found.stderr) == (2, "error: standard output: No space left on device\n")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=buffered) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait() == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
