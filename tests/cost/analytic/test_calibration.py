"""Calibration: factors fitted to one profile hold for another model."""

from dataclasses import replace
from pathlib import Path

import pytest

from hocket import models
from hocket.cost.analytic.calibration import LAUNCH, Calibration, by_kind, calibrated_s, learned
from hocket.cost.analytic.from_operators import costed
from hocket.cost.analytic.transformer import Precision, analytic
from hocket.errors import InputError
from hocket.hardware.catalog import device_type
from hocket.planning.mesh.plan_model import search_sizes
from hocket.planning.search.request import PlanRequest
from hocket.profiling.analytic.operators import KINDS, MemoryPass, Product
from hocket.profiling.analytic.sketch import sketch
from tests.planning.mesh.test_layout import GPT, SERVERS

CORE = device_type("cpu-core")
TRUTH = Calibration(
    "cpu-core",
    {"product": 0.4, "convolution": 0.5, "attention": 0.7, "recurrence": 0.3, "pass": 1.6, LAUNCH: 2.5},
    {"product": 0.3, "convolution": 0.6, "attention": 0.9, "recurrence": 0.4, "pass": 1.2, LAUNCH: 1.5},
    step=3.0,
)


@pytest.fixture(scope="module")
def one():  # type: ignore[no-untyped-def]
    """A GPT."""
    return sketch(models.job("gpt", n_layer=2, d_model=128, n_head=4, seq=64), (2, 4))


@pytest.fixture(scope="module")
def other():  # type: ignore[no-untyped-def]
    """A GPT of other sizes."""
    return sketch(models.job("gpt", n_layer=3, d_model=192, n_head=2, seq=32), (4,))


def whole_s(profile, side):  # type: ignore[no-untyped-def]
    """Seconds of the model with the largest microbatches."""
    return sum(getattr(layer, f"{side}_s")[-1] for layer in profile.layers)


@pytest.mark.slow
def test_what_one_model_teaches_holds_for_another(one, other) -> None:  # type: ignore[no-untyped-def]
    """Factors fitted to one model predict another within a tenth.

    Without them, the prediction is worse. The device is slower by the factors of its kinds of operators.
    """
    measured = costed(one, CORE, TRUTH)
    found = learned(one, measured, CORE)
    truth, believed, before = costed(other, CORE, TRUTH), costed(other, CORE, found), costed(other, CORE)
    for side in ("forward", "backward"):
        assert whole_s(believed, side) == pytest.approx(whole_s(truth, side), rel=0.1)
        assert abs(whole_s(before, side) / whole_s(truth, side) - 1) > 0.3
    again = costed(one, CORE, found)
    for side in ("forward", "backward"):
        both = [sum(sum(getattr(x, f"{side}_s")) for x in profile.layers) for profile in (again, measured)]
        assert both[0] == pytest.approx(both[1], rel=1e-6)
    assert any("calibrated by gpt" in note for note in believed.notes)
    assert [x.stash_bytes for x in believed.layers] == [x.stash_bytes for x in before.layers]


@pytest.mark.slow
def test_kinds_that_were_not_seen_have_the_factor_of_all(one) -> None:  # type: ignore[no-untyped-def]
    """Kinds that did not occur have the factor of all kinds.

    The device is three times as slow as estimated for everything.
    """
    plain = costed(one, CORE)
    slow = replace(
        plain,
        layers=tuple(
            replace(x, forward_s=tuple(3 * s for s in x.forward_s), backward_s=tuple(3 * s for s in x.backward_s))
            for x in plain.layers
        ),
    )
    found = learned(one, slow, CORE)
    assert found.forward == pytest.approx(dict.fromkeys((*KINDS, LAUNCH), 3.0))
    assert found.backward == pytest.approx(dict.fromkeys((*KINDS, LAUNCH), 3.0))


def test_seconds_by_kind() -> None:
    """Operators bound by their launch are a separate kind; factors multiply estimates."""
    operators = (MemoryPass(0.0), MemoryPass(1e9), Product(512, 512, 512, element_bytes=4))
    found = by_kind(operators, CORE, "float32")
    assert set(found) == {LAUNCH, "pass", "product"}
    assert found[LAUNCH] == CORE.launch_s
    assert calibrated_s(operators, CORE, "float32", None) == pytest.approx(sum(found.values()))
    twice = {LAUNCH: 2.0, "pass": 1.0, "product": 1.0}
    assert calibrated_s(operators, CORE, "float32", twice) == pytest.approx(sum(found.values()) + CORE.launch_s)


def test_it_is_a_file(tmp_path: Path) -> None:
    """A calibration survives its text form; other documents and factors are refused."""
    TRUTH.save(tmp_path / "c.yaml")
    assert Calibration.read(tmp_path / "c.yaml") == TRUTH
    with pytest.raises(InputError, match="hocket calibrate"):
        Calibration.from_yaml("format: hocket-plan-1\n")
    with pytest.raises(InputError, match="forward"):
        replace(TRUTH, forward={"speed": 1.0})
    with pytest.raises(InputError, match=r"backward\.pass"):
        replace(TRUTH, backward={"pass": -1.0})


def test_what_does_not_belong_together_is_refused(one, other) -> None:  # type: ignore[no-untyped-def]
    """Profiles of two models, other sizes or another device type are refused."""
    measured = costed(one, CORE)
    with pytest.raises(InputError, match="another model"):
        learned(other, measured, CORE)
    with pytest.raises(InputError, match="microbatch sizes"):
        learned(one, replace(measured, microbatch_sizes=(2, 8)), CORE)
    with pytest.raises(InputError, match="factors of cpu-core"):
        costed(one, device_type("k80"), TRUTH)


def test_planning_by_sizes_with_it() -> None:
    """Calibration of an analytic model scales seconds, but not memory.

    The predicted iteration gets longer. A calibration of another device type is refused.
    """
    a100 = SERVERS.type_of(0)
    halves = dict.fromkeys((*KINDS, LAUNCH), 2.0)
    twice = Calibration(a100.name, halves, halves, 2.0, "a test")
    plain, slow = (analytic(GPT, a100, precision=Precision(), calibration=c) for c in (None, twice))
    for a, b in zip(plain.layers, slow.layers, strict=True):
        assert b.forward_s == pytest.approx([2 * s for s in a.forward_s])
        assert b.backward_s == pytest.approx([2 * s for s in a.backward_s])
        assert (b.step_s, b.stash_bytes) == (pytest.approx(2 * a.step_s), a.stash_bytes)
    found = [search_sizes(GPT, SERVERS, PlanRequest(32, calibration=c)).best.iteration_s for c in (None, twice)]
    assert found[1] > 1.2 * found[0]
    with pytest.raises(InputError, match="factors of"):
        search_sizes(GPT, SERVERS, PlanRequest(32, calibration=TRUTH))
