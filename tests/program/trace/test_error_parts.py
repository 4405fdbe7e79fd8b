"""Parts of a prediction's error, on runs with parts known by construction."""

import json
from dataclasses import replace

import pytest

from hocket.errors import InputError
from hocket.program.instruction import Kind
from hocket.program.trace.chrome import parse_trace, trace_json
from hocket.program.trace.compare import compare
from hocket.program.trace.error_parts import Parts, pace_of, parts_of
from hocket.program.trace.trace import Trace
from tests.program.trace.schedules import pipeline, replicas

UPDATES = 6


def parts(predicted: Trace, measured: Trace) -> Parts:
    """Parts of the error of two traces."""
    found = parts_of(predicted, measured)
    assert found is not None
    return found


def test_a_machine_that_is_slower_throughout() -> None:
    """A pace of 1.16 for all instructions: waits and the model's error are zero."""
    for run in (pipeline, replicas):
        found = parts(run(UPDATES), run(UPDATES, pace=1.16))
        assert (found.pace, found.pace_from) == (pytest.approx(1.16), "instructions")
        assert found.pace_s == pytest.approx(0.16 * found.predicted_s)
        assert (found.waits_s, found.model_s) == (0.0, pytest.approx(0.0, abs=1e-12))


def test_a_machine_that_is_busy() -> None:
    """Waits for cores in the first stage are the waits' part; others are zero.

    Every forward of that stage waits half a second.
    """
    waits = {(0, f"forward 0 #{k}"): 0.5 for k in range(2 * UPDATES)}
    found = parts(pipeline(UPDATES), pipeline(UPDATES, waits))
    assert found.pace == pytest.approx(1.0)
    assert found.waits_s == pytest.approx(found.measured_s - found.predicted_s)
    assert found.waits_s == pytest.approx(1.0)
    assert found.model_s == pytest.approx(0.0, abs=1e-9)


def test_a_model_that_is_wrong() -> None:
    """Messages four times as long as predicted are the model's part."""
    found = parts(pipeline(UPDATES), pipeline(UPDATES, send_s=1.0))
    assert (found.pace, found.waits_s) == (pytest.approx(1.0), 0.0)
    assert found.model_s == pytest.approx(found.measured_s - found.predicted_s)
    assert found.model_s > 0


def test_all_three_at_once() -> None:
    """The parts do not influence each other and add up to the whole error."""
    waits = {(0, f"forward 0 #{k}"): 0.5 for k in range(2 * UPDATES)}
    predicted, measured = pipeline(UPDATES), pipeline(UPDATES, waits, pace=1.16, send_s=1.0)
    found, unhindered = parts(predicted, measured), pipeline(UPDATES, pace=1.16, send_s=1.0)
    assert found.pace == pytest.approx(1.16)
    assert found.waits_s == pytest.approx(measured_s(measured) - measured_s(unhindered))
    assert found.model_s == pytest.approx(measured_s(unhindered) - 1.16 * measured_s(predicted))
    assert found.pace_s + found.waits_s + found.model_s == pytest.approx(found.measured_s - found.predicted_s)
    assert sum(found.shares) == pytest.approx(found.predicted_s / found.measured_s - 1)


def measured_s(trace: Trace) -> float:
    """Seconds of an update."""
    return compare(trace, trace).update.measured


def test_one_kind_that_differs_does_not_move_the_pace() -> None:
    """Steps that take ten times as long are the model's error, not the pace."""
    slow = pipeline(UPDATES, pace=1.1)
    longer = [
        replace(event, end_s=event.end_s + 9 * (event.end_s - event.start_s)) if event.kind is Kind.STEP else event
        for event in slow.events
    ]
    assert pace_of(pipeline(UPDATES), Trace.of(longer)) == (pytest.approx(1.1), "instructions")


def test_a_kernel_beside_the_run_says_the_pace() -> None:
    """A kernel measured beside the run determines the pace, before the instructions.

    An invalid figure is ignored.
    """
    told = Trace.of(pipeline(UPDATES, pace=1.2).events, meta={"pace": 1.1})
    found = parts(pipeline(UPDATES), told)
    assert (found.pace, found.pace_from) == (1.1, "kernel")
    assert found.model_s == pytest.approx(0.1 * found.predicted_s)
    for nonsense in (0, -1.0, "fast", None):
        assert pace_of(pipeline(2), Trace.of(pipeline(2).events, meta={"pace": nonsense}))[1] == "instructions"


def test_traces_without_common_instructions_have_no_pace() -> None:
    """Traces without common instructions have pace 1, measured by nothing.

    Without two updates there are no parts.
    """
    assert pace_of(pipeline(2), Trace.of(())) == (1.0, "nothing")
    assert parts_of(pipeline(1), pipeline(UPDATES)) is None
    assert compare(pipeline(UPDATES), pipeline(1)).parts is None


def test_waits_are_in_the_text_form() -> None:
    """Seconds in the queue are preserved by the text form.

    Zero seconds are not written, and negative ones are refused.
    """
    trace = pipeline(2, {(0, "forward 0 #1"): 1 / 3})
    assert parse_trace(trace_json(trace)) == trace
    assert trace_json(trace).count("queued_s") == 1
    data = json.loads(trace_json(trace))
    next(e for e in data["traceEvents"] if "queued_s" in e.get("args", {}))["args"]["queued_s"] = -1.0
    with pytest.raises(InputError, match="s in a queue for a core"):
        parse_trace(json.dumps(data))
