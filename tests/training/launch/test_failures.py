"""Tests of which of several ends is shown."""

import json

import pytest

from hocket.errors import CaptureError, HocketError, WorkerLost
from hocket.training.launch.failures import describe, first_cause, understand
from hocket.util.units import show_bytes


def sent(rank: int, error: BaseException, at_s: float) -> HocketError:
    """An error as the watcher gets it."""
    event = json.loads(json.dumps(describe(error, at_s, "at step 2 in `step 0 u1`")))
    return understand(rank, event).error


def test_input_errors_keep_their_kind_and_parts() -> None:
    """An input error has the same kind and text in launcher and worker."""
    error = CaptureError("layer 3", "a branch", "none", "Remove it.")
    found = sent(1, error, 0.0)
    assert type(found) is CaptureError
    assert str(found) == str(error)
    assert found.exit_code == 2


def test_other_errors_name_worker_place_and_trace() -> None:
    """An error in the job's code names the worker and its instruction.

    The error has the traceback.
    """
    try:
        raise ValueError("no such sample")
    except ValueError as error:
        found = sent(1, error, 0.0)
    assert isinstance(found, WorkerLost)
    first, *rest = str(found).splitlines()
    assert first == "worker 1 failed at step 2 in `step 0 u1`: ValueError: no such sample"
    assert rest[-2:] == ["ValueError: no such sample", first]


def test_a_member_of_a_group_is_named() -> None:
    """By the name that the watcher has for it."""
    event = describe(ValueError("no such sample"), 0.0, "at step 2 in `step 0 u1`")
    name = "worker 3, member 1 of group 1"
    assert str(understand(3, event, name).error).startswith(f"{name} failed at step 2 in `step 0 u1`: ValueError: ")


@pytest.mark.parametrize("debug", [False, True])
def test_frames_of_other_peoples_code_are_left_out(debug: bool) -> None:
    """A trace has only frames of the job's code unless debugging is on.

    This also holds for the cause. Frames of Python's library and of Hocket are kept only for debugging.
    """

    try:
        try:
            json.loads("{")
        except ValueError:
            show_bytes("much")  # type: ignore[arg-type]
    except TypeError as error:
        event = describe(error, 0.0, "somewhere", debug)
    frames = [line for line in event["trace"].splitlines() if line.startswith("  File")]
    assert sum(__file__ in line for line in frames) == 2
    assert ("units.py" in event["trace"], "decoder.py" in event["trace"]) == (debug, debug)
    assert "JSONDecodeError" in event["trace"]
    assert event["trace"].splitlines()[-1].startswith("TypeError: ")


def test_a_traceback_without_own_frames_stays() -> None:
    """A traceback without frames of the job's code is shown unchanged."""
    try:
        exec(compile("1 / 0", json.__file__, "exec"))
    except ZeroDivisionError as error:
        error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
        event = describe(error, 0.0, "somewhere")
    assert json.__file__ in event["trace"]


@pytest.mark.parametrize(
    "consequence",
    [
        RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4242"),
        RuntimeError("Broken pipe"),
        ConnectionResetError("Connection reset by peer"),
        WorkerLost("device 0: lost device 1"),
    ],
)
def test_broken_connections_are_consequences(consequence: BaseException) -> None:
    """A lost connection is a consequence, not the first cause.

    This also holds if it was reported first.
    """
    failures = [
        understand(0, describe(consequence, 1.0, "somewhere")),
        understand(1, describe(KeyError("weight"), 2.0, "somewhere")),
        understand(2, describe(KeyError("later"), 3.0, "somewhere")),
    ]
    assert [failure.peer for failure in failures] == [True, False, False]
    assert first_cause(failures).rank == 1
    assert first_cause(failures[:1]).rank == 0
