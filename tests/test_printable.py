"""Names from files reach the terminal, errors and reports without control characters."""

import json
import unicodedata
from pathlib import Path

import pytest

from hocket.cli import main
from hocket.errors import InputError
from hocket.printable import printable

# Red, a new title of the terminal, a bell, the C1 form of an escape, letters from right to left, a line that looks like ours.
HOSTILE = "a\x1b[31mRED\x1b]0;title\x07\x9b2J\u202eevil\u2066\nerror: all is well"


def _assert_plain(text: str) -> None:
    odd = {c for c in text if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")}
    assert not odd, f"{odd} in {text!r}"


def test_what_is_seen_stays_and_what_is_not_is_shown() -> None:
    """Letters, signs, spaces and pictures of any script stay; controls and marks of direction become escapes."""
    assert printable("Zoë 模型 🎵\u00a0x") == "Zoë 模型 🎵\u00a0x"
    assert printable("a\x1b[31m\u202eb\n\U000e0001") == "a\\x1b[31m\\u202eb\\n\\U000e0001"
    assert printable("a\tb\nc\rd", lines=True) == "a\tb\nc\\rd"


def test_an_error_shows_what_it_found_as_escapes() -> None:
    """Its fields are as they were, for machines."""
    error = InputError(f"job {HOSTILE}", HOSTILE)
    _assert_plain(str(error))
    assert error.found == HOSTILE


@pytest.fixture
def cluster_files(tmp_path: Path) -> Path:
    """Jobs, workers, throughputs and a snapshot whose every name is hostile; one job runs nowhere, and one cannot be placed by AlloX."""
    kinds = [[HOSTILE, 1], [f"{HOSTILE}2", 1], [HOSTILE, 2]]
    alone = [[1.0], [0.0], [1.0]]
    table = {"format": "hocket-throughputs-1", "places": [[HOSTILE, True]], "kinds": kinds, "alone": alone, "pairs": []}
    jobs = [
        {"id": HOSTILE, "job_type": HOSTILE, "steps": 100.0, "entity": HOSTILE},
        {"id": f"{HOSTILE}2", "job_type": f"{HOSTILE}2", "steps": 100.0},
        {"id": f"{HOSTILE}3", "job_type": HOSTILE, "steps": 100.0, "scale_factor": 2},
    ]
    snapshot = {
        "worker_types": [HOSTILE],
        "cluster": {HOSTILE: 2},
        "instance_costs": {HOSTILE: 1.0},
        "jobs": [
            {"id": job["id"], "job_type": "m", "total_steps": 9, "num_steps_remaining": 9, "throughput": {HOSTILE: k}}
            for k, job in enumerate(jobs)
        ],
    }
    (tmp_path / "throughputs.json").write_text(json.dumps(table))
    (tmp_path / "jobs.json").write_text(json.dumps({"format": "hocket-workload-1", "jobs": jobs}))
    (tmp_path / "snapshot.json").write_text(json.dumps(snapshot))
    (tmp_path / "workers.yaml").write_text(json.dumps({"workers": [{"name": HOSTILE, "workers": 2}]}))
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        "simulate jobs.json workers.yaml -p allox --report report.html --journal journal.log",
        "compare jobs.json workers.yaml -p fifo -p water_filling --report report.html",
        "simulate jobs.json workers.yaml -p min_cost",  # an error: no prices
    ],
)
def test_names_of_a_cluster_are_shown_as_escapes(
    words: str, cluster_files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the terminal, in errors, in reports and in journals."""
    monkeypatch.setenv("COLUMNS", "400")  # no table cuts a name
    monkeypatch.chdir(cluster_files)
    main(["cluster", *words.split(), "--throughputs", "throughputs.json"])
    told = capsys.readouterr()
    assert "\\x1b[31m" in told.out + told.err
    _assert_plain(told.out + told.err)
    for written in ("report.html", "journal.log"):
        if (cluster_files / written).exists():
            _assert_plain((cluster_files / written).read_text())
    if (cluster_files / "journal.log").exists():
        main(["cluster", "replay", "journal.log"])
        _assert_plain("".join(capsys.readouterr()))


def test_names_of_a_snapshot_are_shown_as_escapes(
    cluster_files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also in reasons and below the table."""
    monkeypatch.setenv("COLUMNS", "400")  # no table cuts a name
    monkeypatch.chdir(cluster_files)
    assert main(["cluster", "solve", "snapshot.json", "-p", "water_filling"]) == 0
    told = capsys.readouterr().out
    assert told.count("\\x1b[31m") > 3
    _assert_plain(told)


def test_names_of_a_profile_and_a_cluster_are_shown_as_escapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the model and its layers, wherever commands about plans show them; also in the report of a simulation."""
    here = Path(__file__).resolve().parents[1]
    monkeypatch.setenv("COLUMNS", "400")  # no table cuts a name
    monkeypatch.chdir(tmp_path)
    from hocket.profiling.readers import pipedream

    pipedream.read(here / "hocket/profiling/examples/vgg16.graph.txt").save("plain.json")
    data = json.loads(Path("plain.json").read_text())
    text = json.dumps(data)
    for layer in data["layers"]:
        text = text.replace(json.dumps(layer["name"]), json.dumps(layer["name"] + HOSTILE))
    Path("profile.json").write_text(text.replace(json.dumps(data["name"]), json.dumps(HOSTILE), 1))
    cluster = str(here / "examples/clusters/pipedream-c.yaml")
    plan = f"plan profile.json {cluster} -B 8 -o plan.yaml --explain"
    for words in (
        plan,
        "show plan.yaml",
        "show plan.yaml --program",
        "check plan.yaml",
        "simulate plan.yaml --report r.html",
    ):
        assert main(words.split()) == 0
    _assert_plain(Path("r.html").read_text())
    told = capsys.readouterr()
    assert "\\x1b[31m" in told.out + told.err
    _assert_plain(told.out + told.err)
