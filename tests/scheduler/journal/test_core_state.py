"""Core state: complete, so that cores with equal states behave equally."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.scheduler.core.core import Core
from hocket.scheduler.core.events import (
    Event,
    JobArrived,
    JobWithdrawn,
    PriceChanged,
    Progressed,
    RoundEnded,
    WorkersLost,
)
from hocket.scheduler.core.fifo_baseline import FirstCome
from hocket.scheduler.core.job_table import BY_SLOT
from hocket.scheduler.core.policy_by_name import policy_named
from hocket.scheduler.core.policy_runner import Policy
from hocket.scheduler.core.settings import Settings
from hocket.scheduler.journal.core_state import _CACHES, state_of
from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Snapshot
from tests.scheduler.core.test_core import Story, job, one
from tests.scheduler.helpers.drive import Driver, cluster, driver, even
from tests.tiers import examples


@pytest.mark.parametrize(
    "change",
    [
        {"weight": 9.0}, {"scale_factor": 2}, {"arrived_s": 0.5}, {"slo_s": 50.0}, {"entity": "team"},
        {"job_type": "other"}, {"steps": 2e6},
    ],
    ids=str,
)  # fmt: skip
def test_jobs_that_differ_in_anything_are_seen(change: dict[str, Any]) -> None:
    """Cores that differ in one value of a job have different states."""
    states = []
    for own in (job("x"), replace(job("x"), **change)):
        drive = driver((2,), even)
        drive.arrive([(own, (1.0,))])
        drive.rounds(1)
        states.append(state_of(drive.core))
    assert states[0] != states[1]


def test_the_next_lease_number_is_seen() -> None:
    """The next lease number is part of the state.

    It is 1 after a job that started and left, and 0 if no job started.
    """
    first, second = driver((1,), even), driver((1,), even)
    one(first, "a")
    first.rounds(1)
    first.tell(JobWithdrawn("a"))
    second.tell(RoundEnded())
    assert [state_of(drive.core)["floor"]["given"] for drive in (first, second)] == [1, 0]


class _Always:
    def __call__(self, snapshot: Snapshot) -> Allocation:
        return even(snapshot)


class _Fails(_Always):
    def __call__(self, snapshot: Snapshot) -> Allocation:
        raise ArithmeticError


def _other(snapshot: Snapshot) -> Allocation:
    raise ArithmeticError


def _by(policy: Policy, snapshot: Snapshot) -> Allocation:
    return policy(snapshot)


@pytest.mark.parametrize(
    ("one_policy", "another"),
    [
        (even, _other),
        (_Always(), _Fails()),
        (_Always().__call__, _Fails().__call__),
        (partial(_by, even), partial(_by, _other)),
        (partial(partial(_by, even)), partial(partial(_by, _other))),
        (partial(_by, even), even),
    ],
    ids=["function", "class", "method", "argument", "nested", "partial"],
)
def test_policies_with_other_code_are_seen(one_policy: Policy, another: Policy) -> None:
    """Cores with different policies have different states, even without memory."""
    cores = [driver((2,), policy).core for policy in (one_policy, another, one_policy)]
    states = [state_of(core) for core in cores]
    assert states[0] != states[1]
    assert states[0] == states[2]


def _busy() -> Core:
    """A core in the middle of its work.

    Jobs wait, run and left; workers were lost, and prices changed.
    """
    core = Driver(
        Core(
            cluster(3, 2, per_server=2), FirstCome(True), Settings(queue="types", shuffle=True), np.full((1, 1, 2), 0.6)
        )
    )
    for k in range(6):
        core.tell(JobArrived(job(f"j{k}", 1 + k % 2), (1.0, 0.5), 0))
    core.rounds(2)
    core.tell(Progressed(("j0",), (5e5,), (100.0,)))
    core.tell(JobWithdrawn("j1"))
    core.tell(WorkersLost(0, (2,)))
    core.tell(PriceChanged(1, 2.0))
    core.rounds(1)
    return core.core


def _parts(core: Core) -> dict[str, Any]:
    names = ("roster", "floor", "asking", "book", "choice")
    return {"core": core, **{name: getattr(core, name) for name in names}, "policy": core.asking.policy}


@pytest.mark.parametrize("part", _parts(_busy()))
def test_every_attribute_of_every_part_is_in_it(part: str) -> None:
    """Changing any attribute changes the state, except derived attributes.

    A new field is therefore included without a change of core_state.py.
    """
    core = _busy()
    before = json.dumps(state_of(core))
    assert json.dumps(state_of(deepcopy(core))) == before
    for name, value in vars(_parts(core)[part]).items():
        if name in _CACHES.get(type(_parts(core)[part]), ()):
            continue
        other = deepcopy(core)
        setattr(_parts(other)[part], name, _another(value, rows=part == "roster" and name in BY_SLOT))
        assert json.dumps(state_of(other)) != before, f"{part}.{name} is not in the state"


def _another(value: Any, rows: bool) -> Any:
    """A different value for an attribute; for arrays by slot, in each row."""
    if not rows:
        return {"something else": 0} if isinstance(value, dict) else "something else"
    return np.full_like(value, 77) if isinstance(value, np.ndarray) else ["something else"] * len(value)


POLICIES: list[Callable[[], Policy]] = [
    lambda: even,
    FirstCome,
    lambda: FirstCome(True, 3),
    lambda: policy_named("allox"),
    lambda: policy_named("finish_time_fairness"),
    lambda: policy_named("gandiva"),
    lambda: policy_named("uniform_progress"),
]


@pytest.mark.parametrize("make", POLICIES, ids=range(len(POLICIES)))
@given(data=st.data())
@examples(12)
def test_cores_that_compare_equal_answer_alike_to_all_that_comes(
    make: Callable[[], Policy], data: st.DataObject
) -> None:
    """Refused events do not change the state.

    One core gets random events; the other gets the same events, with invalid ones in between. They stay equal.
    """
    there = cluster(3, 2, per_server=2)
    how = data.draw(
        st.sampled_from([Settings(), Settings(queue="types", shuffle=True, recompute="rounds", attempts=2)])
    )
    drive, other = (Driver(Core(there, make(), how, np.full((1, 1, 2), 0.8))) for _ in range(2))
    story, log = Story(drive, data.draw), []
    handle = drive.core.handle

    def spy(event: Event, now_s: float) -> Any:
        log.append((event, now_s))
        return handle(event, now_s)

    drive.core.handle = spy  # type: ignore[method-assign]
    for _ in range(data.draw(st.integers(1, 12))):
        story.step()
        for event, now_s in log:
            _refused(other.core, now_s)
            other.tell(event, now_s)
        log.clear()
        assert other.said == drive.said
        assert json.dumps(state_of(other.core)) == json.dumps(state_of(drive.core))


def _refused(core: Core, now_s: float) -> None:
    """Send an invalid event, which must change nothing."""
    wrong: list[Event] = [
        JobArrived(Job("new", "any", 1.0), (1.0,)),
        JobWithdrawn("nobody"),
        Progressed((*core.jobs[:1], "nobody"), (1.0,) * (len(core.jobs[:1]) + 1)),
        PriceChanged(0, float("nan")),
        WorkersLost(7, (0,)),
    ]
    for event in wrong:
        with pytest.raises(InputError):
            core.handle(event, now_s)


def test_a_round_that_cannot_begin_counts_no_isolated_time() -> None:
    """A failed round does not count isolated time.

    A policy fails at 360 s, workers are lost, and the round is sent again at 720 s. Rates equal those of a core
    that never failed.
    """
    broken = [False]

    def policy(snapshot: Any) -> Any:
        if broken[0]:
            raise ArithmeticError("a mistake")
        return even(snapshot)

    states = []
    for fails in (True, False):
        drive = driver((2,), policy)
        one(drive, "a")
        drive.rounds(1)
        drive.tell(Progressed(("a",), (9e5,)), 360.0)
        one(drive, "b")
        broken[0] = fails
        if fails:
            with pytest.raises(ArithmeticError):
                drive.core.handle(RoundEnded(), 360.0)
        broken[0] = False
        drive.tell(Progressed(("a",), (8e5,)), 400.0)
        drive.tell(WorkersLost(0, (1,)), 400.0)
        drive.tell(RoundEnded(), 720.0)
        states.append(json.dumps(state_of(drive.core)))
    assert states[0] == states[1]
