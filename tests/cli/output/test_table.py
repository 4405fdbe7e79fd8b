"""Tables fit the terminal; numbers are never broken and stand in one unit."""

from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.cli.output.table import in_bytes, in_seconds, line_width, print_table

COLUMNS = ["layer", "kind", "fwd (ms)", "bwd (ms)", "notes"]
ROWS = [
    ["transformer.h.0.attn.c_attn", "Conv1D", "1,234", "0.125", "scaled by 0.9, recurrent"],
    ["lm_head", "Linear", "12.3", "45.6", ""],
]


@pytest.mark.parametrize("width", [50, 60, 80, 140])
def test_numbers_are_whole_at_any_width(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A table fits the terminal's width without loss of text.

    Every number is on the first line of its row.
    """
    print_table("a title that is longer than forty characters are", COLUMNS, ROWS, right=(2, 3), width=width)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert any("1,234" in line and "0.125" in line for line in lines)
    letters = "".join("".join(lines).split())
    for cell in (*ROWS[0], *ROWS[1]):
        for word in cell.split() if width > 80 else ():
            assert word in letters


def test_columns_go_in_the_order_given(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns are dropped in the given order, and only if needed.

    The other columns keep their places.
    """
    rows = [["a" * 10, "b" * 10, "c" * 10]]
    assert print_table("t", ["one", "two", "three"], rows, drop=(1, 0), width=60) == []
    assert print_table("t", ["one", "two", "three"], rows, drop=(1, 0), width=30) == ["two"]
    capsys.readouterr()
    assert print_table("t", ["one", "two", "three"], rows, drop=(1, 0), width=20) == ["one", "two"]
    assert "cccccccccc" in capsys.readouterr().out


def test_names_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Cells are plain text.

    Terminal control characters are escaped, brackets are not markup, and wide characters take two columns.
    """
    print_table("t", ["name", "n"], [["a\x1b[31mb", "1"], ["[bold]", "2"], ["層", "3"]], right=(1,), width=60)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "a\\x1b[31mb   1" in out
    assert "[bold]       2" in out
    assert "層           3" in out


def test_a_terminal_is_as_wide_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """COLUMNS counts where there is no terminal; else there is room."""
    monkeypatch.setenv("COLUMNS", "77")
    assert line_width() == 77
    monkeypatch.delenv("COLUMNS")
    assert line_width() == 140


def test_one_unit_for_a_column() -> None:
    """A column has one unit, which suits its median value.

    Zero is 0, an unknown value is a dash, and there are no exponents.
    """
    assert in_seconds([0.00125, 0.5e-3, 0.0, nan, 2.5e-3]) == ("ms", ["1.25", "0.500", "0", "-", "2.50"])
    assert in_seconds([1e-9, 1.0, 1500.0]) == ("s", ["<0.001", "1.00", "1,500"])
    assert in_bytes([330.62 * 1024, 1024.0, 34.5 * 2**20]) == ("KiB", ["330.6", "1.000", "35,328"])
    assert in_seconds([]) == ("us", [])
    assert in_bytes([0.0]) == ("B", ["0"])


@given(st.lists(st.floats(1e-12, 1e15), min_size=1))
def test_figures_are_as_near_as_their_digits(values: list[float]) -> None:
    """Read back they are right to half of the last digit that is shown."""
    unit, cells = in_seconds(values)
    size = {"s": 1.0, "ms": 1e-3, "us": 1e-6}[unit]
    for value, cell in zip(values, cells, strict=True):
        if cell != "<0.001":
            last = 10.0 ** -len(cell.partition(".")[2])
            assert abs(float(cell.replace(",", "")) - value / size) <= 0.51 * last + 1e-9 * value / size
        else:
            assert value / size < 0.001
