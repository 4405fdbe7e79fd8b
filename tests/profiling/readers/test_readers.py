"""Conformance of all profile readers."""

import inspect

import pytest

from hocket.errors import InputError
from hocket.profiling.profile import ModelProfile
from hocket.util import registry


@pytest.mark.parametrize("name", registry.names("hocket.profiling.readers"))
def test_every_reader_reads_a_path_and_refuses_nonsense(name, tmp_path):
    """Each reader has read(path) -> ModelProfile and refuses invalid files.

    An empty file and a file of another format are the user's errors.
    """
    member = registry.load("hocket.profiling.readers", name, "reader")
    signature = inspect.signature(member.read)
    assert next(iter(signature.parameters)) == "path"
    assert signature.return_annotation is ModelProfile
    for content in (b"", b"{}", b"\x00\x01", b"a -- b\n" * 3):
        path = tmp_path / "file"
        path.write_bytes(content)
        with pytest.raises(InputError, match="file"):
            member.read(path)
