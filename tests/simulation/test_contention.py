"""Contention for links and cores, worked out by hand."""

import pytest

from hocket.hardware.cluster import Level, Link
from hocket.program.trace.trace import Event, Trace
from hocket.simulation.simulator import play, summarize
from tests.simulation.helpers.chains import Case, Chain


def trace_of(case: Case, repeats: int = 2) -> Trace:
    """Trace of some repetitions."""
    return play(case.program, case.costs, repeats).trace


def named(trace: Trace, device: int, name: str) -> Event:
    """An event by device and name."""
    return next(e for e in trace.events if e.device == device and e.name == name)


def seconds(event: Event) -> float:
    """Seconds of an event."""
    return event.end_s - event.start_s


def levels(shared: bool, latency_s: float = 0.0) -> tuple[Level, ...]:
    """Two servers of two devices; a message of 1e6 bytes between them takes a second."""
    return Level("server", 2, 1e30), Level("cluster", 2, 1e6, latency_s, shared=shared)


def test_two_flows_halve_a_shared_link() -> None:
    """Two messages from one server take twice as long if they share its link."""
    for shared, expected in ((True, 2.0), (False, 1.0)):
        trace = trace_of(Chain("flush", (2, 2), 2, levels(shared)).case(weights_bytes=0.0))
        assert seconds(named(trace, 0, "send 0 #0 act.0>1#0")) == pytest.approx(expected)
        assert seconds(named(trace, 1, "send 0 #1 act.0>1#1")) == pytest.approx(expected)


def test_latency_comes_before_bytes_flow() -> None:
    """A latency of 0.25 s ends before the link is shared: 0.25 s and then 2 s."""
    trace = trace_of(Chain("flush", (2, 2), 2, levels(True, latency_s=0.25)).case(weights_bytes=0.0))
    assert seconds(named(trace, 0, "send 0 #0 act.0>1#0")) == pytest.approx(2.25)


def test_unequal_flows_share_then_speed_up() -> None:
    """Messages of 1 and 2 MB together take 2 s and 3 s.

    The large message has moved 1 MB after 2 s.
    """
    case = Chain("flush", (2, 2), 2, levels(True), samples=(1, 2)).case(weights_bytes=0.0, forward_s=1e-9)
    trace = trace_of(case)
    assert seconds(named(trace, 0, "send 0 #0 act.0>1#0")) == pytest.approx(2.0, rel=1e-6)
    assert seconds(named(trace, 1, "send 0 #1 act.0>1#1")) == pytest.approx(3.0, rel=1e-6)


def test_two_cores_for_three_devices() -> None:
    """Three busy devices on two cores run at two thirds of their speed.

    Two devices run at full speed.
    """
    inner = (Level("machine", 3, 1e30),)
    for width, expected in ((3, 1.5), (2, 1.0)):
        case = Chain("data_parallel", (width,), 3, inner, host_cores=2).case(weights_bytes=0.0)
        assert seconds(named(trace_of(case), 0, "forward 0 #0")) == pytest.approx(expected)


def test_a_transfer_takes_cores_from_compute() -> None:
    """A transfer of 1 s loads one core on both ends, so compute gets a third of it.

    Device 0 runs forward #1 (3 s alone) from t = 3. Until 4 it does 1/3 s. Then device 1 computes too, and both run
    at half speed, so that the remaining 8/3 s take 16/3 s.
    """
    inner = (Level("machine", 2, 1e6),)
    case = Chain("gpipe", (1, 1), 2, inner, host_cores=1, transfer_cores=1.0).case(weights_bytes=0.0, forward_s=3.0)
    trace = trace_of(case)
    sent = named(trace, 0, "send 0 #0 act.0>1#0")
    assert (sent.start_s, sent.end_s) == (pytest.approx(3.0), pytest.approx(4.0))
    assert named(trace, 0, "forward 0 #1").end_s == pytest.approx(4 + 16 / 3)


def test_all_reduce_overlaps_the_backward() -> None:
    """All-reduces of three buckets on two replicas overlap the backward.

    The forward ends at 3 s, gradients are complete at 5, 7 and 9 s, and an all-reduce takes 2.5 s. A ring of two
    moves 2 (n-1)/n = 1 times the bytes after 2 (n-1) = 2 latencies, one bucket after the other: 5 to 7.5, to 10, to
    12.5. The next batch starts then.
    """
    inner = (Level("server", 2, 2e6, latency_s=0.25),)
    case = Chain("data_parallel", (2,), 2, inner, layers=3, buckets=True).case(weights_bytes=4e6)
    trace = trace_of(case)
    reduced = [named(trace, 0, f"all_reduce 0 u0 sum.0u0b{b}") for b in range(3)]
    assert [e.start_s for e in reduced] == pytest.approx([5.0, 7.5, 10.0])
    assert [e.end_s for e in reduced] == pytest.approx([7.5, 10.0, 12.5])
    assert named(trace, 0, "forward 0 #2").start_s == pytest.approx(12.5)
    summary = summarize(play(case.program, case.costs))
    assert summary.iteration_s == pytest.approx(12.5)
    assert summary.sent_bytes == {"server": pytest.approx(2 * 3 * 4e6)}
    assert summary.sent_bytes_between == {"0>1": pytest.approx(12e6), "1>0": pytest.approx(12e6)}


def test_measured_all_reduce_figures_go_before_those_of_messages() -> None:
    """A level's own all-reduce measurements take precedence over those of messages."""
    inner = (Level("server", 2, 1e30, all_reduce=Link(4e6, 0.5)),)
    case = Chain("data_parallel", (2,), 2, inner).case(weights_bytes=4e6)
    assert seconds(named(trace_of(case), 0, "all_reduce 0 u0 sum.0u0b0")) == pytest.approx(2 * 0.5 + 1.0)


def test_an_all_reduce_and_messages_share_a_link() -> None:
    """A message of 1 s takes 2 s beside a ring over both servers.

    The ring uses their links in both directions. The ring of three moves 4/3 of 3 MB, 4 s alone. Two messages take
    half of the link for 2 s each, so the ring takes 6 s.
    """
    trace = trace_of(Chain("two_bw", (3, 1), 6, levels(True)).case(weights_bytes=3e6))
    reduced = named(trace, 0, "all_reduce 0 u0 sum.0u0b0")
    beside = named(trace, 3, "send 0 #6 grad.0>1#6")
    assert reduced.start_s < beside.start_s < beside.end_s < reduced.end_s
    assert seconds(beside) == pytest.approx(2.0)
    assert seconds(named(trace, 3, "send 0 #9 grad.0>1#9")) == pytest.approx(1.0)
    assert seconds(reduced) == pytest.approx(6.0)


def test_critical_path_of_a_flushed_pipeline() -> None:
    """The path follows the last microbatch forward and back, and fills the period."""
    case = Chain("flush", (1, 1), 2, levels(True)).case(weights_bytes=0.0)
    path = summarize(play(case.program, case.costs)).critical_path
    assert path[-1].startswith("device 0: step") or path[-1].startswith("device 0: backward")
    assert any("forward 1" in name for name in path)
    assert len(path) == len(set(path))
