"""Colours: contrasts as WCAG defines them, and a class for every kind."""

import pytest

from hocket.program.instruction import Kind
from hocket.reporting.charts.palette import (
    CURVES,
    DARK,
    LIGHT,
    MEANINGS,
    PAINTS,
    class_of,
    contrast,
    family_of,
    luminance,
    stylesheet,
)


def test_contrast_is_that_of_wcag() -> None:
    """The contrast is as WCAG defines it.

    Black on white is 21 to 1, and a colour on itself is 1 to 1. The grey #767676 on white just passes at 4.54 to 1.
    """
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#123456", "#123456") == 1
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)
    assert luminance("#0a0a0a") == pytest.approx(10 / 255 / 12.92)


@pytest.mark.parametrize("name", PAINTS)
def test_blocks_stand_out_and_their_labels_can_be_read(name: str) -> None:
    """3:1 against card and idle time of both themes, 4.5:1 between label and block."""
    paint = PAINTS[name]
    assert contrast(paint.fill, paint.ink) >= 4.5
    assert min(contrast(paint.fill, theme[back]) for theme in (LIGHT, DARK) for back in ("card", "idle")) >= 3


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_texts_can_be_read(theme: dict[str, str]) -> None:
    """4.5:1 for every colour of text on every ground it stands on."""
    for ink in ("text", "muted", "accent", "bad"):
        assert min(contrast(theme[ink], theme[ground]) for ground in ("page", "card", "idle")) >= 4.5


def test_curves_stand_out_and_differ_by_dash_too() -> None:
    """3:1 on both cards; no two curves share colour or dash."""
    for colour, _ in CURVES:
        assert min(contrast(colour, theme["card"]) for theme in (LIGHT, DARK)) >= 3
    assert len({c for c, _ in CURVES}) == len({d for _, d in CURVES}) == len(CURVES)


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_has_a_class_with_a_paint_and_a_meaning(kind: Kind) -> None:
    """No kind of instruction is drawn without colour or legend, whatever the chunk."""
    for chunk in range(9):
        name = class_of(kind, chunk)
        assert name in PAINTS
        assert family_of(name) in MEANINGS
        assert f".{name}{{" in stylesheet()


def test_neighbouring_chunks_differ() -> None:
    """Successive chunks of a device have different colours.

    Recomputation has a colour of its own.
    """
    for kind in (Kind.FORWARD, Kind.BACKWARD):
        assert all(class_of(kind, c) != class_of(kind, c + 1) for c in range(6))
    assert class_of(Kind.FORWARD, again=True) == "again"
