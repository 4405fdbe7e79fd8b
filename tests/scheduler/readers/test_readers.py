"""Readers: valid files, and errors with file, line and field."""

import gzip
import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Entity
from hocket.scheduler.readers import (
    gavel_snapshot,
    gavel_throughputs,
    gavel_trace,
    read_throughputs,
    read_workload,
    throughputs_json,
)
from hocket.scheduler.readers.throughputs_json import packaged
from hocket.scheduler.simulation.workload import Workload, as_text, parse
from tests.scheduler.helpers.gavel import snapshot
from tests.tiers import examples

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "data" / "gavel"
NEEDS = pytest.mark.skipif(not FOLDER.exists(), reason="the public data are not beside the repository")
ROW = "A3C\tpython3 main.py\trl\t--max-steps\t0\t1200\t1\t1\t-1.000000\t5.5"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_trace_is_read(tmp_path: Path) -> None:
    """A Gavel trace, in order of arrival; SLOs are multiples of the V100 duration."""
    second = ROW.replace("-1.000000\t5.5", "2.0\t1.5")
    found = read_workload(write(tmp_path, "two.trace", f"{ROW}\n{second}\n"))
    slo_s = 2 * 1200 / packaged().steps_per_s("A3C", 1, "v100", "")
    assert found.jobs == (Job("1", "A3C", 1200, 1, 1.5, 1.0, slo_s), Job("0", "A3C", 1200, 1, 5.5))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (ROW.replace("5.5", "-5.5"), "line 2, arrived_s: found '-5.5'; expected a number >= 0"),
        (ROW.replace("5.5", "nan"), "line 2, arrived_s: found 'nan'"),
        (ROW.replace("1200", "-1"), "line 2, steps: found '-1'; expected a number > 0"),
        (ROW.replace("1200", "1_200"), "line 2, steps: found '1_200'; expected a number > 0"),
        (ROW.replace("1200", "١"), "line 2, steps: found '١'; expected a number > 0"),
        (
            ROW.replace("5.5", "1e300"),
            "line 2: job 1: arrived_s: found 1e.300; expected a number >= 0, and at most 1e.10",
        ),
        (ROW.replace("1200", "1e-320"), "line 2: job 1: steps: found 1e-320"),
        (ROW.replace("\t1\t1\t", "\t1\t1e308\t"), "line 2: job 1: weight: found 1e.308"),
        (ROW.replace("1200", "0"), "line 2, steps: found '0'"),
        (ROW.replace("-1.000000", "-2"), "line 2, slo"),
        (ROW.replace("A3C", "A3D"), "line 2: job_type: found 'A3D'.*Did you mean 'A3C'"),
        (ROW.replace("\t1\t1\t", "\t3\t1\t"), "line 2: scale_factor: found 3; expected 1 for A3C"),
        (ROW.replace("\t1\t1\t", "\t1e9\t1\t"), "line 2, scale_factor: found '1e9'; expected a whole number >= 1"),
        (ROW.replace("\t1\t1\t", "\t1\t0\t"), "line 2, weight: found '0'"),
        (ROW + "\t7", "line 2: found 11; expected 10 tab-separated fields"),
        ("x" * 5000, "line 2: found 5000 characters"),
    ],
)
def test_a_wrong_row_of_a_trace_is_told(tmp_path: Path, row: str, expected: str) -> None:
    """Errors in a trace name line and field."""
    with pytest.raises(InputError, match=rf"bad\.trace, {expected}"):
        read_workload(write(tmp_path, "bad.trace", f"{ROW}\n{row}\n"))


@NEEDS
def test_public_traces_and_workloads_are_the_same_jobs() -> None:
    """A generated workload as JSON and as a trace has the same jobs.

    The trace has whole steps and six decimals.
    """
    whole, trace = (read_workload(FOLDER / "sim" / f"single_r4_s0.{ending}") for ending in ("json", "trace"))
    for job, other in zip(whole.jobs, trace.jobs, strict=True):
        assert (job.id, job.job_type, job.scale_factor) == (other.id, other.job_type, other.scale_factor)
        assert int(job.steps) == other.steps
        assert job.arrived_s == pytest.approx(other.arrived_s, abs=1e-6)


LISTED: dict[str, Any] = {"id": 0, "arrival_s": 0.0, "job_type": "A3C", "scale_factor": 1, "total_steps": 5.0}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"total_steps": -5.0}, "1: job 1: steps: found -5.0"),
        ({"arrival_s": -1.0}, "1: job 1: arrived_s: found -1.0"),
        ({"job_type": "nothing"}, "1: job_type: found 'nothing'"),
        ({"id": 0}, "1: id: found '0', a second job of this id"),
        ({"scale_factor": "many"}, "1: scale_factor: found 'many'"),
        ({"steps": 5}, "1: steps: found unknown key 'steps'"),
        ({"SLO": 2.0}, "1: duration_v100_s: found nothing"),
    ],
)
def test_a_wrong_job_of_a_list_is_told(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    """Errors in a list name the job's number and the field."""
    path = write(tmp_path, "bad.json", json.dumps([LISTED, {**LISTED, "id": 1, **change}]))
    with pytest.raises(InputError, match=f"bad.json, line 1: {expected}"):
        read_workload(path)


def test_a_number_that_json_does_not_know_is_refused(tmp_path: Path) -> None:
    """NaN is refused."""
    text = json.dumps([{**LISTED, "total_steps": float("nan")}])
    with pytest.raises(InputError, match="NaN is not a number that JSON knows"):
        read_workload(write(tmp_path, "nan.json", text))


jobs = st.builds(
    Job,
    id=st.text(min_size=1, max_size=5),
    job_type=st.just("A3C"),
    steps=st.floats(1e-3, 1e12),
    scale_factor=st.just(1),
    arrived_s=st.floats(0, 1e9),
    weight=st.floats(1e-3, 1e3),
    slo_s=st.none() | st.floats(1e-3, 1e9),
    entity=st.text(max_size=3),
)


entities = st.builds(Entity, st.text(max_size=3), st.floats(1e-3, 1e3), st.sampled_from(["fairness", "fifo"]))


@given(
    st.lists(jobs, max_size=5, unique_by=lambda job: job.id),
    st.text(max_size=5),
    st.lists(entities, max_size=3, unique_by=lambda entity: entity.name),
)
@examples(50)
def test_writing_and_reading_a_workload_are_inverses(some: list[Job], origin: str, teams: list[Entity]) -> None:
    """Workloads survive a round trip, with any jobs, names and entities."""
    whole = Workload(tuple(sorted(some, key=lambda job: job.arrived_s)), origin, tuple(teams))
    assert parse(as_text(whole), "here") == whole


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"format": "hocket-workload-2"}', "found a file of format 'hocket-workload-2'; expected a workload"),
        ('{"format": "hocket-workload-1", "jobs": 3}', "jobs: found int"),
        ('{"format": "hocket-workload-1", "jobs": [], "x": 1}', "unknown key 'x'"),
        ('{"format": "hocket-workload-1", "jobs": [], "origin": 1}', "origin: found int"),
        ('{"format": "hocket-workload-1", "jobs": [], "entities": 1}', "entities: found int"),
        ('{"format": "hocket-workload-1", "jobs": [], "entities": [{"name": "a", "weight": 0}]}', "entity a: weight"),
        ('{"format": "hocket-workload-1", "jobs": [], "entities": [{"name": "a", "share": 1}]}', "share"),
        (
            '{"format": "hocket-workload-1", "jobs": [], "entities": [{"name": "a"}, {"name": "a"}]}',
            "entities.1.name: found 'a'",
        ),
        ('{"format": "hocket-workload-1", "jobs": [{"id": "a", "job_type": "A3C"}]}', "jobs.0: steps: found nothing"),
        ("[", "line 1"),
    ],
)
def test_a_wrong_workload_is_told(tmp_path: Path, text: str, expected: str) -> None:
    """Errors in a workload name file and field."""
    with pytest.raises(InputError, match=f"own.json.*{expected}"):
        read_workload(write(tmp_path, "own.json", text))


SIA = "name,time,application,num_replicas,batch_size\ncifar10-0,107,cifar10,6,2048\nbert-1,12,bert,1,384\n"


def test_a_workload_of_sia_is_read(tmp_path: Path) -> None:
    """Replicas are rounded down to a scale factor; work comes from the application.

    Work is in hours of one worker.
    """
    found = read_workload(write(tmp_path, "sia.csv", SIA))
    assert [(job.id, job.scale_factor, job.arrived_s) for job in found.jobs] == [
        ("bert-1", 1, 12),
        ("cifar10-0", 4, 107),
    ]
    speed = packaged().steps_per_s(found.jobs[1].job_type, 4, "v100", "")
    assert found.jobs[1].steps / speed * 4 == pytest.approx(0.3 * 3600)


def test_a_workload_that_a_spreadsheet_wrote_is_read(tmp_path: Path) -> None:
    """A file with a byte order mark and Windows line ends is read."""
    plain = read_workload(write(tmp_path, "sia.csv", SIA))
    (tmp_path / "sia.csv").write_bytes(("\ufeff" + SIA.replace("\n", "\r\n")).encode())
    assert read_workload(tmp_path / "sia.csv") == plain


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("cifar10,6", "cifar11,6"), "line 2, application: found 'cifar11'; expected .*cifar10"),
        (("107", "-107"), "line 2, time: found '-107'"),
        (("cifar10,6", "cifar10,0"), "line 2, num_replicas: found '0'"),
        (("bert-1,", "cifar10-0,"), "line 3, name: found 'cifar10-0', a second job"),
        ((",384", ""), "line 3: found 4 fields; expected 5"),
        (("num_replicas", "replicas"), "line 1: found .*expected a header"),
        (("batch_size", "time"), "line 1: found two columns time"),
        (("107", "1e11"), "line 2: job cifar10-0: arrived_s: found 1"),
    ],
)
def test_a_wrong_row_of_sia_is_told(tmp_path: Path, change: tuple[str, str], expected: str) -> None:
    """Errors in a Sia workload name line and field."""
    with pytest.raises(InputError, match=f"sia.csv(, |: ){expected}"):
        read_workload(write(tmp_path, "sia.csv", SIA.replace(*change)))


PHILLY = (
    "timestamp,duration,num_gpus,gpu_time,cluster\n"
    "2017-10-09 07:01:55,66.0,1,66.0,a\n2017-10-09 07:00:55,600.0,5,3000.0,a\n2017-10-09 06:00:00,0,1,0,a\n"
)


def test_a_trace_of_philly_is_read(tmp_path: Path) -> None:
    """A Philly-style trace.

    The earliest job arrives at 0, and jobs that never ran are omitted. Durations are on a V100, and the seed draws
    the models.
    """
    path = write(tmp_path, "philly.csv", PHILLY)
    found = read_workload(path, seed=3)
    assert [(job.id, job.scale_factor, job.arrived_s) for job in found.jobs] == [("3", 4, 0), ("2", 1, 60)]
    durations = [j.steps / packaged().steps_per_s(j.job_type, j.scale_factor, "v100", "") for j in found.jobs]
    assert durations == pytest.approx([600, 66])
    assert found == read_workload(path, seed=3)
    assert len({read_workload(path, seed=seed).jobs for seed in range(5)}) > 1


def test_offsets_of_philly_times_count(tmp_path: Path) -> None:
    """A time with an offset is compared in UTC, as are times without one."""
    zones = PHILLY.replace("07:01:55", "07:01:55+01:00").replace("07:00:55", "05:00:55")
    found = read_workload(write(tmp_path, "philly.csv", zones), seed=3)
    assert [(job.id, job.arrived_s) for job in found.jobs] == [("3", 0), ("2", 3660)]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("2017-10-09 07:01:55", "0001-01-01 00:00:00+12:00"), "line 2, timestamp: found '0001-01-01"),
        (("66.0,1", "-66.0,1"), "line 2, duration: found '-66.0'"),
        (("66.0,1", "nan,1"), "line 2, duration: found 'nan'"),
        (("66.0,1", "66.0,1.5"), "line 2, num_gpus: found '1.5'"),
        (("2017-10-09 07:01:55", "yesterday"), "line 2, timestamp: found 'yesterday'"),
    ],
)
def test_a_wrong_row_of_philly_is_told(tmp_path: Path, change: tuple[str, str], expected: str) -> None:
    """Errors in a Philly-style trace name line and field."""
    with pytest.raises(InputError, match=f"philly.csv, {expected}"):
        read_workload(write(tmp_path, "philly.csv", PHILLY.replace(*change)))


TABLE: dict[str, Any] = {
    "v100": {"('A', 1)": {"null": 4.0, "('A', 1)": [2.0, 2.0], "('B', 1)": [3.0, 1.0]}, "('B', 1)": {"null": 2.0}},
    "v100_unconsolidated": {"('A', 1)": {"null": 3.0}},
}


def edited(*keys: str, value: Any) -> str:
    """The table above with one changed value."""
    whole: dict[str, Any] = json.loads(json.dumps(TABLE))
    inner = whole
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    return json.dumps(whole)


def test_a_throughput_table_is_read(tmp_path: Path) -> None:
    """A pair listed once counts for both jobs; missing values are 0.

    Hocket's own format keeps all values.
    """
    table = gavel_throughputs.read(write(tmp_path, "table.json", json.dumps(TABLE)))
    assert table.places == (("v100", True), ("v100", False))
    assert table.alone.tolist() == [[4.0, 3.0], [2.0, 0.0]]
    assert table.beside[:, :, 0].tolist() == [[2.0, 3.0], [1.0, 0.0]]
    again = throughputs_json.parse(throughputs_json.as_text(table), "here")
    assert (again.places, again.kinds) == (table.places, table.kinds)
    assert (again.alone == table.alone).all()
    assert (again.beside == table.beside).all()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (edited("v100", "('A', 1)", "null", value=-1), r"line 1: v100: \('A', 1\): null: found -1"),
        (edited("v100", "('A', 1)", "null", value="4"), r"null: found '4'"),
        (edited("v100", "('A', 1)", "('A', 1)", value=[1]), r"found \[1\]; expected two numbers"),
        (edited("v100", "('A', 1)", "('C', 1)", value=[1, 1]), r"a job without throughputs of its own"),
        (edited("v100", "A", value={}), r"v100: found 'A'; expected a key such as"),
        (edited("v100", value=[]), r"v100: found list; expected a mapping"),
        (json.dumps(TABLE).replace("4.0", "NaN"), "NaN is not a number that JSON knows"),
        (json.dumps(TABLE).replace("4.0", "1e999"), "found inf"),
    ],
)
def test_a_wrong_throughput_is_told(tmp_path: Path, text: str, expected: str) -> None:
    """Errors in a throughput table name the path of keys."""
    with pytest.raises(InputError, match=f"table.json.*{expected}"):
        gavel_throughputs.read(write(tmp_path, "table.json", text))


def test_a_wrong_table_in_our_format_is_told() -> None:
    """Rows, columns and pairs of Hocket's format are checked."""
    good = throughputs_json.as_text(packaged())
    for change, expected in (
        (("hocket-throughputs-1", "hocket-throughputs-0"), "format"),
        (('"kinds": [["', '"kinds": [["x",1],["'), "alone: found 83 rows; expected 84"),
        (('"places": [["', '"places": [["x",true],["'), "alone.0: found 6 numbers; expected 7"),
        (('"pairs": [[0,', '"pairs": [[83,'), r"pairs.0: found \[83"),
    ):
        with pytest.raises(InputError, match=expected):
            throughputs_json.parse(good.replace(*change), "own")


@NEEDS
def test_the_packaged_table_is_the_public_one() -> None:
    """Each number of the packaged table equals the public one."""
    public, ours = gavel_throughputs.read(FOLDER / "simulation_throughputs.json"), packaged()
    rows, columns = [public.row[kind] for kind in ours.kinds], [public.column[place] for place in ours.places]
    assert (public.alone[rows][:, columns] == ours.alone).all()
    assert (public.beside[rows][:, rows][:, :, columns] == ours.beside).all()


@NEEDS
def test_a_snapshot_is_read() -> None:
    """A snapshot file equals the snapshot that the policies' tests build."""
    name = "N128_seed2_multi.json"
    for mixed in (False, True):
        found, byhand = gavel_snapshot.read(FOLDER / "policies" / name, mixed=mixed), snapshot(name, mixed=mixed)
        assert (found.types, found.jobs, found.entities) == (byhand.types, byhand.jobs, byhand.entities)
        assert (found.throughputs == byhand.throughputs).all()
    shared = gavel_snapshot.read(FOLDER / "policies" / name, packaged()).pairs
    assert shared is not None
    assert shared.classes.tolist() == Workload(tuple(active.job for active in found.jobs)).rows(packaged()).tolist()


def test_entities_need_a_weight_or_a_policy(tmp_path: Path) -> None:
    """An entity with only a policy has weight 1, with only a weight it is fair."""
    job = {"id": 1, "job_type": "A", "total_steps": 3.0, "num_steps_remaining": 2.0, "throughput": {"v100": 1.0}}
    data: dict[str, Any] = {"worker_types": ["v100"], "cluster": {"v100": 2}, "jobs": [job]}
    data |= {"entity_weights": {"a": 2.0}, "entity_policies_fair": {"b": "fifo"}}
    path = write(tmp_path, "entities.json", json.dumps(data))
    assert gavel_snapshot.read(path).entities == (Entity("a", 2.0), Entity("b", 1.0, "fifo"))
    with pytest.raises(InputError, match=r"entity_policies_mixed: found nothing"):
        gavel_snapshot.read(path, mixed=True)


def test_a_wrong_snapshot_is_told(tmp_path: Path) -> None:
    """Errors in a snapshot name file and field."""
    job = {"id": 1, "job_type": "A", "total_steps": 3.0, "num_steps_remaining": 2.0, "throughput": {"v100": 1.0}}
    good: dict[str, Any] = {"worker_types": ["v100"], "cluster": {"v100": 2}, "jobs": [job]}
    assert gavel_snapshot.read(write(tmp_path, "ok.json", json.dumps(good))).workers.tolist() == [2.0]
    for change, expected in (
        ({"cluster": {}}, "cluster: v100: found nothing"),
        ({"cluster": {"v100": -1}}, "worker type v100: workers: found -1"),
        ({"jobs": [{**job, "throughput": {}}]}, "jobs.0: throughput: v100"),
        ({"jobs": [{**job, "throughput": {"v100": -1}}]}, "jobs.0: throughput: v100: found -1.0"),
        ({"jobs": [{**job, "throughput": {"v100": 1e999}}]}, "jobs.0.throughput.v100: found Infinity"),
        ({"jobs": [{**job, "num_steps_remaining": 0.0}]}, "jobs.0: job 1: remaining_steps: found 0.0"),
        ({"jobs": [job, job]}, "jobs.1.id: found '1', a second job"),
        ({"jobs": [{**job, "num_steps_remaining": 1e-320}]}, "jobs.0: job 1: remaining_steps: found 1e-320"),
        ({"jobs": [{**job, "throughput": {"v100": 1e-320}}]}, "jobs.0: throughput: v100: found 1e-320"),
        ({"worker_types": ["v100", "v100"]}, "worker_types: found 'v100' twice"),
        (
            {"cluster": {"v100": 2, "a100": 1}},
            "cluster: a100: found unknown type 'a100'; expected one of worker_types: v100",
        ),
        ({"instance_costs": {"V100": 2.0}}, "instance_costs: V100: found unknown type.*Did you mean 'v100'"),
        ({"jobs": [{**job, "throughput": {"v100": 1.0, "k80": 1.0}}]}, "jobs.0: throughput: k80: found unknown type"),
        ({"speed": 1}, "speed: found unknown key 'speed'"),
    ):
        with pytest.raises(InputError, match=f"bad.json(, line 1)?: {expected}"):
            gavel_snapshot.read(write(tmp_path, "bad.json", json.dumps({**good, **change})))


def test_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes, unpacked bytes, and rows are bounded."""
    monkeypatch.setattr("hocket.scheduler.readers._rows.MOST_BYTES", 1000)
    packed = tmp_path / "long.trace.gz"
    packed.write_bytes(gzip.compress(f"{ROW}\n".encode() * 100))
    with pytest.raises(InputError, match="more than 1000 bytes"):
        read_workload(packed)
    monkeypatch.setattr("hocket.scheduler.readers._rows.MOST_BYTES", 10**6)
    monkeypatch.setattr("hocket.scheduler.readers._rows.MOST_JOBS", 99)
    with pytest.raises(InputError, match="line 100: found more than 99 rows"):
        read_workload(packed)


def test_objects_are_counted_before_they_are_parsed(tmp_path: Path) -> None:
    """Objects are counted before parsing, because they may exceed memory."""
    many = write(tmp_path, "many.json", "[" + "{}," * 1_000_001 + "{}]")
    for reader in (read_workload, gavel_throughputs.read, gavel_snapshot.read, throughputs_json.read):
        with pytest.raises(InputError, match=r"many\.json: found 1000002 objects; expected at most "):
            reader(many)


@pytest.mark.parametrize("name", ["empty.csv", "empty.trace"])
def test_empty_lines_are_counted_before_they_are_passed_over(tmp_path: Path, name: str) -> None:
    """Empty lines count as rows, because they cost as much time."""
    head = "name,time,application,num_replicas" if name.endswith(".csv") else ROW
    with pytest.raises(InputError, match=r"empty\..*: found 2000001 lines; expected at most 2000000"):
        read_workload(write(tmp_path, name, head + "\n" * 2_000_001))


@pytest.mark.parametrize(
    ("name", "content", "read"),
    [
        ("table", throughputs_json.as_text(packaged()), read_throughputs),
        ("table", json.dumps({"v100": {"('A3C', 1)": {"null": 1.0}}}), read_throughputs),
        ("jobs.csv", "name,time,application,num_replicas\na,0,bert,1\n", read_workload),
        ("jobs.csv", "timestamp,duration,num_gpus\n2017-10-09 07:01:55,66,1\n", read_workload),
        ("jobs.trace", f"{ROW}\n", read_workload),
    ],
)
def test_a_pipe_is_read_as_a_file_is(tmp_path: Path, name: str, content: str, read: Callable[[Path], object]) -> None:
    """A pipe, which can be read only once, is accepted."""
    pipe = tmp_path / name
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(content,), daemon=True)
    writer.start()
    from_pipe = read(pipe)
    writer.join()
    pipe.unlink()
    from_file = read(write(tmp_path, name, content))
    if isinstance(from_file, Workload):
        assert from_pipe == from_file
    else:
        assert throughputs_json.as_text(from_pipe) == throughputs_json.as_text(from_file)


@pytest.mark.parametrize("name", ["jobs.txt", "jobs", "jobs.csv"])
def test_an_unknown_format_is_told(tmp_path: Path, name: str) -> None:
    """Unknown formats are refused by name or by header."""
    with pytest.raises(InputError, match="expected a"):
        read_workload(write(tmp_path, name, "a,b\n1,2\n"))
    with pytest.raises(InputError, match="no such file"):
        read_workload(tmp_path / "none.csv")


READERS: list[Callable[[Path], object]] = [
    lambda path: gavel_trace.read(path, packaged()),
    lambda path: read_workload(path.rename(path.with_suffix(".csv"))),
    gavel_throughputs.read,
    gavel_snapshot.read,
]


@given(content=st.binary(max_size=200), which=st.integers(0, len(READERS) - 1))
@examples(200)
def test_whatever_a_file_holds_there_is_one_error_or_none(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, which: int
) -> None:
    """Any content gives a result or one InputError."""
    path = tmp_path_factory.mktemp("any") / "file.json"
    path.write_bytes(content)
    with suppress(InputError):
        READERS[which](path)


def test_a_line_of_the_greatest_length_is_read(tmp_path: Path) -> None:
    """One letter more is refused with its line and length."""
    letters = 4096 - len(ROW)
    path = write(tmp_path, "long.trace", ROW.replace("main.py", "main.py" + "x" * letters) + "\n")
    assert len(read_workload(path).jobs) == 1
    path = write(tmp_path, "long.trace", ROW.replace("main.py", "main.py" + "x" * (letters + 1)) + "\n")
    with pytest.raises(InputError, match="line 1: found 4097 characters"):
        read_workload(path)
