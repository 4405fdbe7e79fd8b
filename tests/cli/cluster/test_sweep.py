"""cluster sweep: average JCT against load.

Policies are also tested as the public simulator implements them.
"""

import json
from pathlib import Path

import pytest

from hocket.scheduler.core.core import Core
from hocket.scheduler.core.events import Event
from tests.cli.conftest import Result, Run

SWEEP = "sweep workers.yaml -p max_min_fairness:agnostic -p max_min_fairness --round 3600"


def ask(run: Run, words: str) -> Result:
    """One of the cluster's commands."""
    return run("cluster", *words.split())


def test_each_run_is_that_of_generate_and_simulate(run: Run, shared: Path) -> None:
    """Each run of a sweep equals generate and simulate.

    The figures are equal to the last digit at each rate, with each seed and under each policy.
    """
    told = ask(
        run, f"{SWEEP} --kind continuous-multiple --rates 8,4 --seeds 2 --seed 5 --jobs 14 --first 2 --last 9 --json"
    )
    assert told.code == 0, told.err
    found = told.json
    assert [(r["per_hour"], r["seed"], r["policy"]) for r in found["runs"]] == [
        (rate, seed, policy)
        for rate in (4, 8)
        for seed in (5, 6)
        for policy in ("max_min_fairness (agnostic)", "max_min_fairness")
    ]
    for one in found["runs"]:
        words = f"--rate {one['per_hour']} --jobs 14 --seed {one['seed']} -o made.json"
        assert ask(run, f"generate continuous-multiple {words}").code == 0
        name = one["policy"].replace(" (agnostic)", ":agnostic")
        words = f"--round 3600 --first 2 --last 9 --seed {one['seed']} --json"
        alone = ask(run, f"simulate made.json workers.yaml -p {name} {words}").json
        assert alone["finished"] == 7
        assert {key: one[key] for key in alone} == alone


def test_the_table_has_means_of_seeds_and_what_is_sustained(run: Run, shared: Path) -> None:
    """A row a policy, a column a rate; in JSON what each sustains by the first."""
    words = f"{SWEEP} --rates 2,16 --seeds 2 --jobs 12"
    found, shown = ask(run, f"{words} --json").json, ask(run, words).out
    rows = {line.split("   ")[0].strip(): line.split()[-2:] for line in shown.splitlines() if "max_min" in line}
    for policy in ("max_min_fairness (agnostic)", "max_min_fairness"):
        for rate, cell in zip((2, 16), rows[policy], strict=True):
            times = [r["avg_jct_s"] for r in found["runs"] if (r["policy"], r["per_hour"]) == (policy, rate)]
            assert len(times) == 2
            assert cell == f"{sum(times) / 2 / 3600:.2f}"
    [gain] = found["sustained"]
    assert (gain["policy"], gain["by"]) == ("max_min_fairness", "max_min_fairness (agnostic)")
    assert gain["factor"] == pytest.approx(gain["per_hour"] / gain["as_at_per_hour"])
    assert gain["factor"] > 1
    assert f"max_min_fairness at {gain['per_hour']:.3g} jobs an hour takes" in shown
    assert "took" not in shown
    assert "took" in ask(run, f"{words} --times").out


def test_two_sweeps_are_identical_to_the_byte(run: Run, shared: Path) -> None:
    """Two sweeps have identical output and reports.

    The report has every policy and rate.
    """
    told = []
    for _ in range(2):
        found = ask(run, f"{SWEEP} --rates 2,4,8 --jobs 8 --report load.html")
        assert found.code == 0, found.err
        told.append((found.out, Path("load.html").read_text()))
    assert told[0] == told[1]
    out, page = told[0]
    assert "wrote load.html" in out
    for word in ("One worker a job, jobs 0 to 8, seed 0", "max_min_fairness (agnostic)", "2", "4", "8"):
        assert word in page


def test_a_load_that_ends_too_early_is_told(run: Run, shared: Path) -> None:
    """A sweep reports a load that ends too early.

    This is the case if the last job arrives before all counted jobs are finished. The default number of jobs is
    sufficient.
    """
    words = f"{SWEEP} --rates 0.1 --last 6"
    assert "all 7 jobs had arrived before" in ask(run, f"{words} --jobs 7").out
    assert "had arrived before" not in ask(run, words).out
    assert ask(run, "generate continuous-single --rate 0.1 --jobs 7 -o few.json").code == 0
    [note] = ask(run, "simulate few.json workers.yaml --last 6 --json").json["notes"]
    assert note.startswith("all 7 jobs had arrived before")
    assert ask(run, "generate static-single --jobs 7 -o static.json").code == 0
    assert ask(run, "simulate static.json workers.yaml --last 6 --json").json["notes"] == []


def test_an_interrupted_sweep_leaves_nothing(run: Run, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted sweep leaves no report and no partial table."""
    handle, events = Core.handle, []

    def interrupted(self: Core, event: Event, now_s: float) -> object:
        events.append(event)
        if len(events) == 40:
            raise KeyboardInterrupt
        return handle(self, event, now_s)

    monkeypatch.setattr(Core, "handle", interrupted)
    before = set(Path().iterdir())
    found = ask(run, f"{SWEEP} --rates 2,4 --jobs 9 --report load.html")
    assert (found.code, found.out) == (130, "")
    assert len(events) == 40
    assert set(Path().iterdir()) == before


def test_progress_goes_through_all_runs(run: Run, shared: Path, told: list[tuple[float, float, str]]) -> None:
    """Progress counts the finished jobs of all runs and names the run."""
    assert ask(run, f"{SWEEP} --rates 2,4 --jobs 9 --first 1 --last 4").code == 0
    assert [done for done, _, _ in told] == list(range(1, 13))
    assert {total for _, total, _ in told} == {12}
    assert told[-1][2] == "max_min_fairness at 4 jobs an hour, 3 jobs finished"


def test_who_is_refused_in_all_runs_is_told_once(run: Run, shared: Path) -> None:
    """A job that all runs refuse is named once.

    Averages are of the other jobs.
    """
    Path("workers.yaml").write_text("workers:\n  - {name: v100, workers: 2, per_server: 2}\n")
    shown = ask(run, f"{SWEEP} --kind continuous-multiple --rates 9 --jobs 12").out
    assert shown.count("refused ") == 1
    assert "\n  refused 2 jobs, such as job 0: " in shown


@pytest.mark.parametrize("columns", [60, 80])
def test_the_table_fits_the_terminal(run: Run, shared: Path, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """The least rates are left out, and named."""
    monkeypatch.setenv("COLUMNS", str(columns))
    rates = ",".join(str(k) for k in range(1, 13))
    shown = ask(run, f"{SWEEP} --rates {rates} --jobs 2").out.splitlines()
    table = shown[: next(k for k, line in enumerate(shown) if line.startswith("  a wider terminal shows"))]
    assert max(map(len, table)) <= columns
    assert "12/h" in "\n".join(table)
    assert any(line.startswith("  a wider terminal shows 1/h, 2/h") for line in shown)


@pytest.mark.parametrize("name", ["fifo:agnostic", "max_min_fairness", "finish_time_fairness:agnostic"])
@pytest.mark.thinned(most=1)
def test_a_switch_and_a_way_behind_the_name_are_one(run: Run, shared: Path, name: str) -> None:
    """An option and a suffix of the policy's name are equivalent.

    This holds for policies as published in simulate, compare and sweep. Their results differ from our implementation.
    """
    words = "jobs.json workers.yaml --round 720"
    by_switch = ask(run, f"simulate {words} -p {name} --as-published --json").json
    by_name = ask(run, f"compare {words} -p {name}:as-published -p {name} --json").json
    assert by_switch == by_name[0]
    assert by_switch["avg_jct_s"] != by_name[1]["avg_jct_s"]
    assert "as published" in by_switch["policy"]
    swept = f"sweep workers.yaml --rates 9 --jobs 4 -p {name}"
    one, other = (ask(run, f"{swept}{way} --json").json for way in (":as-published", " --as-published"))
    assert one == other


def test_an_agnostic_allocation_names_its_view(run: Run, shared: Path) -> None:
    """The objective and the reasons of an agnostic policy are for equal types, without a gap."""
    found = ask(run, "solve snapshot.json -p makespan:agnostic --json").json
    assert found["gap"] is None
    assert found["note"].startswith("objective and reasons are as the agnostic policy sees it")
    told = ask(run, "solve snapshot.json -p makespan --agnostic").out
    assert "as the policy sees it\n" in told
    assert "gap" not in told.splitlines()[0]
    whole = ask(run, "solve snapshot.json -p makespan --json").json
    assert whole["gap"] < 1e-6
    assert whole["note"] == ""


@pytest.mark.slow
def test_space_sharing_may_be_of_one_policy(run: Run, shared: Path) -> None:
    """The other shares no workers."""
    name = "max_min_fairness"
    words = f"compare jobs.json workers.yaml -p {name} -p {name}:space-sharing --json"
    alone, sharing = ask(run, words).json
    whole = ask(run, f"simulate jobs.json workers.yaml -p {name} --space-sharing --json").json
    assert sharing["policy"] == f"{name} (space sharing)"
    assert {**sharing, "policy": name} == whole
    assert alone == ask(run, f"simulate jobs.json workers.yaml -p {name} --json").json
    one = ask(run, "solve snapshot.json -p max_min_fairness:space-sharing --json").json
    assert one["objective"] == ask(run, "solve snapshot.json --space-sharing --json").json["objective"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fifo:agnostic", "max_min_fairness"])
def test_a_journal_of_a_published_policy_replays(run: Run, shared: Path, name: str) -> None:
    """A journal of a policy as published replays to the state at its end.

    This holds for the whole journal and for a truncated journal. Only the journal is needed.
    """
    words = f"simulate jobs.json workers.yaml -p {name} --as-published --seed 3 --journal journal.log"
    assert ask(run, words).code == 0
    whole = run("cluster", "replay", "journal.log", "--json").json
    assert whole["policy"] == f"{name}:as-published"
    assert whole["state"]["jobs"] == {}
    lines = Path("journal.log").read_bytes().splitlines(keepends=True)
    part = len(lines) // 2
    Path("journal.log").write_bytes(b"".join(lines[:part]))
    found = run("cluster", "replay", "journal.log", "--json")
    assert found.code == 0, found.err
    assert found.json["events"] == part - 1
    assert json.dumps(found.json["state"]["jobs"]) != "{}"
