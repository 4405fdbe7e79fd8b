"""Journal: exact replay, dropped incomplete records, and detected damage."""

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.scheduler.core.events import (
    Event,
    JobArrived,
    JobFailed,
    JobFinished,
    JobWithdrawn,
    PriceChanged,
    Progressed,
    RoundEnded,
    SharingMeasured,
    ThroughputMeasured,
    WorkersJoined,
    WorkersLost,
)
from hocket.scheduler.core.policy_by_name import policy_named
from hocket.scheduler.core.settings import Settings
from hocket.scheduler.journal import journal as room
from hocket.scheduler.journal.core_setup import Setup
from hocket.scheduler.journal.core_state import state_of
from hocket.scheduler.journal.journal import Journal, read
from hocket.scheduler.journal.serialization import event_as_data, event_of
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.readers.throughputs_json import packaged
from hocket.scheduler.simulation.simulator import Simulation
from hocket.scheduler.simulation.simulator_options import SimulatorOptions
from hocket.scheduler.simulation.trace_generator import Draws, static
from hocket.util.files import MAX_FILE_BYTES
from tests.scheduler.helpers.drive import cluster, even
from tests.tiers import examples

CLUSTER = cluster(2, 1)
SETUP = Setup(CLUSTER.types, CLUSTER.columns, "even", Settings(balance_after=None), (((0.5, 0.5),),))
STORY: list[tuple[Event, float]] = [
    (JobArrived(Job("a", "any", 1e6, 1, 0.0, 2.0, 7200.0, "team"), (1.0, 0.1), 0), 0.0),
    (JobArrived(Job("b ü\n", "any", 1e6), (0.3, 1 / 3)), 0.1),
    (RoundEnded(), 0.1),
    (ThroughputMeasured("a", 1, 0.2), 5.0),
    (WorkersJoined(1, (1, 2)), 7.0),
    (Progressed(("a", "b ü\n"), (1e5, 1e6 / 3)), 360.1),
    (RoundEnded(), 360.1),
    (JobFailed("a", "killed"), 400.0),
    (SharingMeasured(0, 0, 1, 0.7, 0.6), 500.0),
    (PriceChanged(0, 3.06), 600.0),
    (RoundEnded(), 720.1),
    (WorkersLost(0, (1,)), 800.0),
    (JobWithdrawn("b ü\n"), 900.0),
    (RoundEnded(), 1080.1),
    (JobFinished("a"), 1100.0),
]


def write(path: Path) -> list[str]:
    """Random events in a journal, and the state after each event, from zero events on."""
    with Journal.create(path, SETUP, even) as journal:
        states = [shown(journal)]
        for event, now_s in STORY:
            journal.tell(event, now_s)
            states.append(shown(journal))
    return states


def shown(journal: Journal) -> str:
    """State of a journal's core."""
    return json.dumps(state_of(journal.core))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[str]]:
    """Content of a journal, and the state after each event."""
    path = tmp_path_factory.mktemp("journal") / "journal"
    states = write(path)
    return path.read_bytes(), states


def test_a_journal_replays_to_the_same_state(tmp_path: Path) -> None:
    """Setup, events and core are equal after a replay."""
    states = write(tmp_path / "journal")
    found = read(tmp_path / "journal")
    assert found.setup == SETUP
    assert [(event, now_s) for now_s, event in found.events] == STORY
    assert json.dumps(state_of(found.replay(even))) == states[-1]
    assert found.torn_bytes == 0


def test_any_beginning_of_the_file_gives_a_beginning_of_the_story(
    whole: tuple[bytes, list[str]], tmp_path: Path
) -> None:
    """A file cut at any byte gives the state after its complete records.

    Within the first record it is not a journal.
    """
    content, states = whole
    path = tmp_path / "cut"
    ends = [k + 1 for k, byte in enumerate(content) if byte == 10]
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        if size < ends[0]:
            with pytest.raises(InputError, match="no journal record"):
                read(path)
            continue
        found = read(path)
        count = sum(end <= size for end in ends) - 1
        assert (len(found.events), found.size_bytes) == (count, ends[count])
        assert found.torn_bytes == size - ends[count]
        if size in (ends[count], ends[count] + 40):
            assert json.dumps(state_of(found.replay(even))) == states[count]


@given(where=st.integers(0, 10**9), bit=st.integers(0, 7))
@examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_is_found(whole: tuple[bytes, list[str]], tmp_path: Path, where: int, bit: int) -> None:
    """A flipped bit anywhere gives one error, with file and line.

    It may be in a record, a checksum or the end of a line.
    """
    content = bytearray(whole[0])
    at = where % len(content)
    content[at] ^= 1 << bit
    path = tmp_path / "flipped"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(path) in caught.value.place
    if at > content.index(b"\n"):
        assert caught.value.place == f"{path}, line {whole[0][:at].count(10) + 1}"
        assert "first" in caught.value.next_step


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("left out", lambda lines: lines[:4] + lines[5:]),
        ("doubled", lambda lines: [*lines[:5], lines[4], *lines[5:]]),
        ("moved", lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]]),
        ("the first left out", lambda lines: lines[1:]),
    ],
)
def test_records_hang_together(whole: tuple[bytes, list[str]], tmp_path: Path, name: str, change: Any) -> None:
    """A missing, duplicate or moved record is detected, although each record is valid."""
    path = tmp_path / "journal"
    path.write_bytes(b"".join(change(whole[0].splitlines(keepends=True))))
    with pytest.raises(InputError):
        read(path)


def test_a_torn_journal_is_gone_on_with(whole: tuple[bytes, list[str]], tmp_path: Path) -> None:
    """An incomplete record is truncated, and the journal can be continued.

    The file then equals an undamaged one.
    """
    content, states = whole
    path = tmp_path / "journal"
    path.write_bytes(content[:-30])
    with Journal.open(path, even) as journal:
        assert shown(journal) == states[-2]
        journal.tell(*STORY[-1])
        assert shown(journal) == states[-1]
    assert path.read_bytes() == content


def test_an_event_that_cannot_be_is_not_written(tmp_path: Path) -> None:
    """An invalid event changes neither the file nor the core."""
    path = tmp_path / "journal"
    with Journal.create(path, SETUP, even) as journal:
        before = path.read_bytes(), shown(journal)
        with pytest.raises(InputError, match="job nobody"):
            journal.tell(JobFinished("nobody"), 1.0)
        assert (path.read_bytes(), shown(journal)) == before


def test_a_disk_that_is_full_leaves_whole_records(tmp_path: Path) -> None:
    """A partly written record is removed, and the error gives the reason."""
    path = tmp_path / "journal"
    with Journal.create(path, SETUP, even) as journal:
        before = path.read_bytes()
        stream = journal._stream

        class Full:
            room_bytes = 10  # a disk takes what it has room for, and refuses the rest

            def write(self, line: bytes) -> int | None:
                if not self.room_bytes:
                    raise OSError(errno.ENOSPC, "No space left on device")
                taken, self.room_bytes = self.room_bytes, 0
                return stream.write(line[:taken])

            def __getattr__(self, name: str) -> Any:
                return getattr(stream, name)

        journal._stream = Full()  # type: ignore[assignment]
        with pytest.raises(InputError, match="No space left on device"):
            journal.tell(*STORY[0])
        journal._stream = stream
    assert path.read_bytes() == before


def test_what_was_told_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Creating, `sync` and closing sync to disk; sending an event does not.

    A driver can therefore sync once for many events.
    """
    asked: list[int] = []
    monkeypatch.setattr(room.os, "fsync", asked.append)
    journal = Journal.create(tmp_path / "journal", SETUP, even)
    count = len(asked)
    assert count >= 1
    journal.tell(*STORY[0])
    assert len(asked) == count
    journal.sync()
    assert len(asked) == count + 1
    journal.close()
    journal.close()
    assert len(asked) == count + 2


@pytest.mark.parametrize(
    ("event", "now_s", "says"),
    [
        (JobFinished("nobody"), 1.0, "line 4: job nobody: found no job with this name"),
        (STORY[0][0], 1.0, "line 4: job a: found a second job with this name"),
        (RoundEnded(), -5.0, "line 4: event: time: found -5 s"),
    ],
)
def test_an_event_that_cannot_be_is_told_with_its_line(tmp_path: Path, event: Event, now_s: float, says: str) -> None:
    """An invalid event in a file is reported with its line."""
    path = tmp_path / "journal"
    with Journal.create(path, SETUP, even) as journal:
        for told, when in STORY[:2]:
            journal.tell(told, when)
        journal.record(event, now_s)
    with pytest.raises(InputError, match=f"journal, {says}"):
        read(path).replay(even)


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    """A new journal does not overwrite a file; a failed creation leaves no file."""
    path = tmp_path / "journal"
    path.write_text("precious")
    with pytest.raises(InputError, match="an existing file"):
        Journal.create(path, SETUP, even)
    assert path.read_text() == "precious"
    with pytest.raises(InputError, match="No such file"):
        Journal.create(tmp_path / "no" / "journal", SETUP, even)


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"hello\n", b"{}\n", b"\xff\n" * 5])
def test_what_is_no_journal_is_told(tmp_path: Path, content: bytes) -> None:
    """Other files give one clear error with the file."""
    path = tmp_path / "journal"
    path.write_bytes(content)
    with pytest.raises(InputError, match="no journal record"):
        read(path)


@pytest.mark.slow
def test_a_journal_may_have_any_size(tmp_path: Path) -> None:
    """A journal that could be written can be read; other files have a limit."""
    long = "x" * (room.MAX_RECORD_BYTES - 1000)
    path = tmp_path / "journal"
    with Journal.create(path, SETUP, even) as journal:
        for turn in range(17):
            journal.record(JobFailed("a", f"{turn}{long}"), float(turn))
    assert path.stat().st_size > MAX_FILE_BYTES
    assert len(read(path).events) == 17


def test_the_longest_record_is_read_and_a_longer_one_is_not_written(tmp_path: Path) -> None:
    """Lines have a checksum of 32 digits, a space and a newline beside the record."""
    path = tmp_path / "journal"
    with Journal.create(path, SETUP, even) as journal:
        before = path.stat().st_size
        journal.record(JobFailed("a", ""), 0.0)
        rest = room.MAX_RECORD_BYTES - (path.stat().st_size - before - 32 - 2)
        journal.record(JobFailed("a", "x" * rest), 0.0)
        with pytest.raises(InputError, match=f"a record of {room.MAX_RECORD_BYTES + 1} bytes"):
            journal.record(JobFailed("a", "x" * (rest + 1)), 0.0)
    assert len(read(path).events) == 2


def test_a_file_beyond_all_use_is_refused_at_its_beginning(tmp_path: Path) -> None:
    """A huge file, a folder and a missing file are refused."""
    path = tmp_path / "journal"
    with open(path, "wb") as stream:
        stream.truncate(2**30)
    with pytest.raises(InputError, match="no journal record at the beginning"):
        read(path)
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "none")
    with pytest.raises(InputError, match="directory"):
        read(tmp_path)


def test_a_line_without_end_is_no_torn_record(whole: tuple[bytes, list[str]], tmp_path: Path) -> None:
    """A line longer than any record is damage, not an incomplete write."""
    path = tmp_path / "journal"
    path.write_bytes(whole[0] + b"x" * (room.MAX_RECORD_BYTES + 100))
    with pytest.raises(InputError, match="changed after it was written"):
        read(path)
    path.write_bytes(b"x" * (room.MAX_RECORD_BYTES + 100))
    with pytest.raises(InputError, match="no journal record at the beginning"):
        read(path)


@pytest.mark.parametrize("event", [event for event, _ in STORY], ids=lambda event: type(event).__name__)
def test_events_are_the_same_after_a_journey_as_plain_data(event: Event) -> None:
    """Events survive JSON exactly."""
    assert event_of(json.loads(json.dumps(event_as_data(event))), "here") == event


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([], "here: found"),
        ({"event": "JobFinishd", "job": "a"}, "here: event: found 'JobFinishd'.*Did you mean 'JobFinished'"),
        ({"event": "JobFinished"}, "here: job: found nothing; expected a value"),
        ({"event": "JobFinished", "job": "a", "why": 1}, "unknown key 'why'"),
        ({"event": "WorkersLost", "type": "x", "workers": []}, "here: type: found 'x'; expected a whole number"),
        (
            {"event": "JobArrived", "job": {"id": "", "job_type": "x", "steps": 1}, "throughputs": []},
            "id: found nothing",
        ),
    ],
)
def test_data_that_is_no_event_is_told_by_its_field(data: Any, says: str) -> None:
    """Errors name the place, the field, the value and what is expected."""
    with pytest.raises(InputError, match=says):
        event_of(data, "here")


def test_the_journal_of_a_simulation_replays_to_its_state(tmp_path: Path) -> None:
    """The journal of a simulation replays to the same state.

    The run has job pairs, changing prices and lost workers.
    """
    path = tmp_path / "journal"
    types = (WorkerType("v100", 2, 2, 2.0), WorkerType("k80", 2, 1, 0.5))
    options = SimulatorOptions(Settings(round_s=3600.0), space_sharing=True, spread=True)
    given: list[tuple[float, Event]] = [(5000.0, PriceChanged(0, 3.0)), (9000.0, WorkersLost(1, (0,)))]
    work = static(packaged(), 5, 1, Draws(multiple=True))
    simulation = Simulation(work, types, packaged(), policy_named("max_min_fairness"), replace(options, last=2), given)
    core = simulation.core
    with Journal.beside(path, Setup.of(core, "max_min_fairness"), core) as journal:
        simulation.run(journal.record)
    found = read(path)
    assert found.setup == Setup.of(found.setup.core(even), "max_min_fairness")
    states = [json.dumps(state_of(core)) for core in (simulation.core, found.replay(policy_named(found.setup.policy)))]
    assert states[0] == states[1]
    assert len(simulation.core.jobs) > 0
