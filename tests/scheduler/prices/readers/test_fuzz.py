"""Readers return a result or an InputError for any file."""

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.scheduler.prices.readers import aws, azure, catalogue, gcp, log, throughputs
from tests.tiers import examples

PIECES = st.lists(
    st.sampled_from(
        ["Date,NC6\n", "1/2/1970", "$1", ",", "\n", '"', "\0", "é", "[1970-01-01T00:00:00Z] ", "Instance a ", "running in ",
         "zone us-east-1b", '{"SpotPriceHistory":', "[", "]", "{", "}", "null", ":", "1e999", "-1", "v100", "nan"]
    ),
    max_size=12,
).map("".join)  # fmt: skip
READERS = {
    "aws": lambda path: aws.read([path]),
    "azure": lambda path: azure.read([path], {"NC6": ("k80", 1.0)}),
    "mapping": azure.read_instances,
    "gcp": lambda path: gcp.read([path]),
    "catalogue": lambda path: catalogue.read([(path, 0.0)], "aws"),
    "log": lambda path: log.read(path, "aws"),
    "throughputs": throughputs.read,
}


@pytest.mark.parametrize("reader", sorted(READERS))
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=PIECES | st.text(max_size=60))
def test_nothing_but_an_input_error_comes_out(tmp_path: Path, reader: str, text: str) -> None:
    """Any text in the place of a file gives at most an InputError."""
    path = tmp_path / "1970-01-01T000140Z.out"
    path.write_bytes(text.encode(errors="surrogatepass"))
    with suppress(InputError):
        READERS[reader](path)


@pytest.mark.parametrize("reader", sorted(READERS))
def test_a_file_beyond_all_use_is_refused_by_its_size(tmp_path: Path, reader: str) -> None:
    """Huge files are refused before they are parsed."""
    path = tmp_path / "1970-01-01T000140Z.out"
    path.touch()
    os.truncate(path, 2**30)
    with pytest.raises(InputError, match="more than 67108864 bytes"):
        READERS[reader](path)
