"""Google's preemptible prices."""

from pathlib import Path

import pytest

from hocket.errors import InputError
from hocket.scheduler.prices.readers import gcp

LINE = "Zone: us-west1-b, GPU type: nvidia-tesla-v100, Number of GPUs: 4, Price per hour: $3.404"


def test_prices_of_several_looks_are_one_series(tmp_path: Path) -> None:
    """Several files form one series; the file name is the time.

    Accelerators are attached to any machine.
    """
    paths = [tmp_path / "1970-01-01T000140Z.out", tmp_path / "1970-01-01T00:03:20.000Z.out"]
    paths[0].write_text(LINE + "\n")
    paths[1].write_text(LINE.replace("3.404", "4") + "\n")
    (offer,) = gcp.read(paths)
    assert offer.key == ("gcp", "us-west1", "us-west1-b", "4xv100")
    assert offer.spot is not None
    assert (offer.spot.times_s, offer.spot.values) == ((100.0, 200.0), (3.404, 4.0))
    assert offer.price(150.0) == pytest.approx(0.851)


@pytest.mark.parametrize(
    ("old", "new"),
    [("Zone: ", "Place: "), ("us-west1-b", "us-west1"), ("$3.404", "$-3"), (": 4", ": 0"), ("nvidia-tesla-v100", "?")],
)
def test_a_wrong_line_is_named(tmp_path: Path, old: str, new: str) -> None:
    """Errors name the line."""
    path = tmp_path / "1970-01-01T000140Z.out"
    path.write_text(LINE.replace("Number of GPUs: 4", "Number of GPUs: 2") + "\n" + LINE.replace(old, new) + "\n")
    with pytest.raises(InputError, match=r"\.out, line 2"):
        gcp.read([path])


def test_a_file_of_no_moment_and_an_instance_twice_are_refused(tmp_path: Path) -> None:
    """A file name that is not a time, and a duplicate instance, are refused."""
    path = tmp_path / "prices.out"
    path.write_text(LINE)
    with pytest.raises(InputError, match=r"prices\.out: name"):
        gcp.read([path])
    path = tmp_path / "1970-01-01T000140Z.out"
    path.write_text(f"{LINE}\n{LINE}\n")
    with pytest.raises(InputError, match=r"line 2: found .* twice"):
        gcp.read([path])
