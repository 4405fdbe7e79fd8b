"""Azure price lists by day."""

from math import isnan
from pathlib import Path

import pytest

from hocket.errors import InputError
from hocket.scheduler.prices.readers import azure
from tests.scheduler.helpers.public_prices import EXAMPLES

KINDS = {"NC6": ("k80", 1.0), "NC12s v2": ("p100", 2.0)}


def write(folder: Path, text: str) -> Path:
    """A price list of us_east."""
    path = folder / "us_east.csv"
    path.write_text(text)
    return path


def test_a_price_holds_from_the_beginning_of_its_day(tmp_path: Path) -> None:
    """A price holds from the start of its day in UTC; an empty field ends the sale."""
    path = write(tmp_path, "Date,NC6,NC12s v2\n1/2/1970,$0.5,$1.0\n1/3/1970,,$2.0\n1/4/1970,$0.6,$2.0")
    six, twelve = azure.read([path], KINDS)
    assert (six.key.region, six.key.zone, six.key.instance_type) == ("us-east", "", "NC6")
    assert six.spot is not None
    assert six.spot.at(86400) == 0.5
    assert isnan(six.spot.at(2 * 86400))
    assert six.spot.at(4 * 86400) == 0.6
    assert (twelve.accelerator, twelve.price(86400)) == ("p100", 0.5)


def test_a_list_that_a_spreadsheet_wrote_is_read(tmp_path: Path) -> None:
    """A file with a byte order mark is read."""
    [found] = azure.read([write(tmp_path, "\ufeffDate,NC6\n1/2/1970,$0.5\n")], KINDS)
    assert found.key.instance_type == "NC6"


def test_an_instance_that_was_never_sold_is_no_offer(tmp_path: Path) -> None:
    """An instance with an empty column has no offer."""
    path = write(tmp_path, "Date,NC6,NC12s v2\n1/2/1970,$0.5,\n")
    assert [o.key.instance_type for o in azure.read([path], KINDS)] == ["NC6"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("Date,NC6\n1/2/1970,free\n", r"us_east\.csv, line 2: NC6: found 'free'"),
        ("Date,NC6\n1/2/1970,$0\n", r"line 2: NC6"),
        ("Date,NC6\n1/2/1970,$0.00000000001\n", r"line 2: NC6"),
        ("Date,NC6\n1970-01-02,$1\n", r"line 2: Date"),
        ("Date,NC6\n1/2/1970,$1\n1/2/1970,$1\n", r"line 3: Date"),
        (
            "Date,NC6\n1/2/1970,$1\n1/3/1970,$1\n1/2/1970,$2\n",
            r"line 4: Date: found '1/2/1970', which an earlier line has too; expected each day once",
        ),
        ("Date,NC6\n1/2/9999,$1\n", r"line 2: Date"),
        ("Date,NC6\n1/2/1970,1١\n", r"line 2: NC6"),
        ("Date\n1/2/1970\n", r"line 1: found no column besides Date"),
        ("Date,NC6\n1/2/1970,$1,$2\n", r"line 2: found 3 fields"),
        ("Date,NC6,NC6\n", r"us_east\.csv, line 1: found two columns 'NC6'; expected each column once"),
        ("Date,NC7\n", r"line 1: found a column 'NC7'.*Add its accelerators"),
        ("Day,NC6\n", r"line 1: .*a column 'Date'"),
        ("", r"line 1: found an empty file"),
        ('Date,NC6\n"1/2/1970,$1\n', r"us_east\.csv, line"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, place: str) -> None:
    """Errors name the line and the column."""
    with pytest.raises(InputError, match=place):
        azure.read([write(tmp_path, text)], KINDS)


def test_accelerators_of_instances_are_read() -> None:
    """The published mapping is read; a duplicate name is refused."""
    found = azure.read_instances(EXAMPLES / "azure" / "instance_mapping.csv")
    assert found["NC24s v3"] == ("v100", 4.0)
    assert len(found) == 12


@pytest.mark.parametrize("row", ["NC6,K80,0", "NC6,K80,x", "NC6,,1", ",K80,1", "NC6,K80,1\nNC6,K80,1", "NC6,K80,1e9"])
def test_a_mapping_that_is_none_is_refused(tmp_path: Path, row: str) -> None:
    """Invalid mappings are refused, with line and field."""
    path = tmp_path / "m.csv"
    path.write_text("Instance,GPU type,# GPUs\n" + row)
    with pytest.raises(InputError, match=r"m\.csv, line [23]: "):
        azure.read_instances(path)
