"""Errors about values of options name the option as it was written, and the value."""

import json

import pytest

from hocket.cli import main
from tests.paths import EXAMPLES

CLUSTER = str(EXAMPLES / "clusters" / "laptop.yaml")
CURVE = str(EXAMPLES / "curves" / "images.yaml")


@pytest.mark.parametrize(
    ("words", "place", "found", "expected"),
    [
        ("plan gpt2-xl CLUSTER --batch abc", "--batch", "'abc'", "a whole number"),
        ("plan gpt2-xl CLUSTER -B 1.5", "--batch", "'1.5'", "a whole number"),
        ("plan gpt2-xl CLUSTER --batch=", "--batch", "''", "a whole number"),
        ("plan gpt2-xl CLUSTER -B 8 --rows 0", "--rows", "0", ">= 1"),
        ("plan gpt2-xl CLUSTER -B 8 --samples many", "--samples", "'many'", "a number"),
        ("plan gpt2-xl CLUSTER -B 8 --objective=", "--objective", "''", "one of time, cost, devices"),
        ("scaling gpt2-xl CLUSTER CURVE --devices 4 --devices 8x", "--devices", "'8x'", "a whole number"),
        ("what-if gpt2-xl CLUSTER -B 8 --batch many", "--batch", "'many'", "a number of samples, or a factor such as"),
        ("what-if gpt2-xl CLUSTER -B 8 --batch +-5", "--batch", "'+-5'", "a number of samples, or a factor such as"),
        ("what-if gpt2-xl CLUSTER -B 8 --device-type=", "--device-type", "''", "a device type, such as h100"),
        ("train none.py --host-link=", "--host-link", "''", "bytes a second, such as 2GB/s"),
    ],
)
@pytest.mark.thinned(most=5)
def test_the_value_is_named(
    words: str, place: str, found: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value of another type, an empty one, and one out of range.

    Each is one line on standard error, and one document with --json.
    """
    asked = [{"CLUSTER": CLUSTER, "CURVE": CURVE}.get(word, word) for word in words.split()]
    assert main(asked) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith(f"error: {place}: found {found}; expected {expected}")
    assert error.count("\n") == 1
    assert main([*asked, "--json"]) == 2
    document = json.loads(capsys.readouterr().out)["error"]
    assert (document["place"], document["found"]) == (place, found)


def test_other_usage_errors_show_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown option and a missing argument have no value to name."""
    for words in (["plan", "gpt2-xl", CLUSTER, "--batc", "3"], ["plan", "gpt2-xl"]):
        assert main(words) == 2
        assert "Try 'hocket plan -h' for help." in capsys.readouterr().err
