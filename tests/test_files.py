"""files.py: read strictly and bounded, written whole or not at all."""

import errno
import gzip
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.files import (
    as_data,
    check_folder_to_write,
    digest,
    parse_json,
    parse_yaml,
    place_to_write,
    read_as,
    read_bytes,
    seems_instead,
    write_atomic,
    write_yaml,
)

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]), max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """Something inside a whole."""

    size: int
    name: str = ""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError("size", str(self.size), ">= 1")


@dataclass(frozen=True)
class Whole:
    """Something with parts."""

    title: str
    parts: tuple[Part, ...] = ()
    extra: Part | None = None

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


def failing(error: OSError) -> Any:
    """A function that fails as the operating system does."""

    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


# --- reading bytes


def test_gzip_is_unpacked(tmp_path: Path) -> None:
    """A name that ends in .gz is unpacked; any other is not."""
    packed = gzip.compress(b"hello")
    (tmp_path / "a.gz").write_bytes(packed)
    (tmp_path / "a.bin").write_bytes(packed)
    assert read_bytes(tmp_path / "a.gz") == b"hello"
    assert read_bytes(tmp_path / "a.bin") == packed


def test_a_gzip_bomb_is_refused_unpacked(tmp_path: Path) -> None:
    """The limit counts unpacked bytes: 64 MiB of zeros in 64 KiB do not get past 1 MiB."""
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(64 * 2**20)))
    assert path.stat().st_size < 2**17
    with pytest.raises(InputError, match="at most 1048576 bytes"):
        read_bytes(path, 2**20)


def test_the_limit_is_exact(tmp_path: Path) -> None:
    """A file of exactly the limit is read, one byte more is not."""
    (tmp_path / "f").write_bytes(b"12345")
    assert read_bytes(tmp_path / "f", 5) == b"12345"
    with pytest.raises(InputError):
        read_bytes(tmp_path / "f", 4)


@pytest.mark.parametrize("damage", ["truncated", "not gzip", "bad deflate"])
def test_damaged_gzip_is_an_input_error(tmp_path: Path, damage: str) -> None:
    """A torn, foreign or corrupt archive names the file."""
    packed = gzip.compress(os.urandom(1000))
    content = {"truncated": packed[:500], "not gzip": b"{}", "bad deflate": packed[:10] + b"\xff" * 50}[damage]
    (tmp_path / "f.gz").write_bytes(content)
    with pytest.raises(InputError, match=r"f\.gz"):
        read_bytes(tmp_path / "f.gz")


def test_a_missing_file_offers_the_nearest(tmp_path: Path) -> None:
    """A misspelt file name gets the right one as a hint."""
    (tmp_path / "profile.json").write_text("{}")
    with pytest.raises(InputError, match=r"no such file.*Did you mean 'profile\.json'"):
        read_bytes(tmp_path / "profil.json")


@pytest.mark.parametrize("name", [".", "no/such/folder/f", "a\0b"])
def test_what_is_no_file_is_an_input_error(tmp_path: Path, name: str) -> None:
    """A folder, a path through nowhere, a name with a NUL: one clear error each."""
    with pytest.raises(InputError):
        read_bytes(f"{tmp_path}/{name}")


# --- writing


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    """The new content stands there, and nothing else is left in the folder."""
    path = tmp_path / "f"
    write_atomic(path, "old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """When syncing or renaming fails, the old file is as it was, nothing lies beside it, and the error says so."""
    path = tmp_path / "f"
    path.write_text("old")
    monkeypatch.setattr(os, step, failing(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(InputError, match=r"No space left on device.*Nothing was changed"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["f"]


def test_an_interrupt_leaves_nothing_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of a write passes on and leaves the old file alone."""
    path = tmp_path / "f"
    path.write_text("old")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX")
def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """A real refusal of the kernel in the middle of the content: the process may write no file above 64 KiB."""
    path = tmp_path / "f"
    path.write_text("old")
    script = (
        "import resource, signal, sys\n"
        "from hocket.errors import InputError\n"
        "from hocket.files import write_atomic\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "try:\n"
        "    write_atomic(sys.argv[1], bytes(10**6))\n"
        "except InputError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout
    assert "Nothing was changed." in done.stdout
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["f"]


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that takes no files, also from an administrator, who may write anywhere."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder and may(path, mode))
    return folder


def test_a_folder_that_takes_no_files(read_only: Path) -> None:
    """It is refused before there is anything to write, as are folders inside it."""
    with pytest.raises(InputError, match=f"no permission to write into {read_only}") as caught:
        place_to_write(read_only / "f")
    assert caught.value.place == str(read_only / "f")
    for path in (read_only, read_only / "new" / "newer"):
        with pytest.raises(InputError, match=f"^here: found no permission to write into {read_only}"):
            check_folder_to_write(path, "here")


def test_folders_to_write(tmp_path: Path) -> None:
    """One that is there, or can be made, will do; a file, or a place inside one, will not."""
    check_folder_to_write(tmp_path, "here")
    check_folder_to_write(tmp_path / "new" / "newer", "here")
    (tmp_path / "f").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    for name, found in (
        ("f", "a file"),
        ("f/g", f"a place inside {tmp_path / 'f'}, which is a file"),
        ("dangling", "a file"),
    ):
        with pytest.raises(InputError, match="a folder, or a name that is free") as caught:
            check_folder_to_write(tmp_path / name, "here")
        assert caught.value.found == found


def test_a_symbolic_link_stays(tmp_path: Path) -> None:
    """What it points to is written, through a chain of links and where nothing was before; the links stay links."""
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "f").write_text("old")
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to("far/f")
    (tmp_path / "dangling").symlink_to("far/g")
    for name in ("first", "dangling"):
        write_atomic(tmp_path / name, "new")
        assert (tmp_path / name).is_symlink()
    assert [(tmp_path / "far" / name).read_text() for name in "fg"] == ["new", "new"]
    assert sorted(os.listdir(tmp_path / "far")) == ["f", "g"]


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    """/dev/null, also behind a link, swallows what is written, and is a device afterwards."""
    (tmp_path / "null").symlink_to("/dev/null")
    for path in (tmp_path / "null", Path("/dev/null")):
        write_atomic(path, "new")
        assert path.is_char_device()


def test_a_pipe_gets_the_content(tmp_path: Path) -> None:
    """A named pipe passes the content on to its reader and stays a pipe."""
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE) as reader:
        write_atomic(tmp_path / "pipe", "new")
        assert reader.communicate()[0] == b"new"
    assert (tmp_path / "pipe").is_fifo()


def test_standard_output_is_not_replaced(tmp_path: Path) -> None:
    """/dev/stdout that goes into a file writes into that open file: what is printed later comes after it."""
    script = "from hocket.files import write_atomic; write_atomic('/dev/stdout', 'new\\n')"
    with open(tmp_path / "out", "w") as out:
        before = os.fstat(out.fileno()).st_ino
        subprocess.run([sys.executable, "-c", script], stdout=out, check=True)
    assert ((tmp_path / "out").read_text(), (tmp_path / "out").stat().st_ino) == ("new\n", before)
    piped = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert piped.stdout == b"new\n"


def test_a_missing_folder_is_named_and_not_the_file_aside(tmp_path: Path) -> None:
    """The message says which folder is missing, and nothing of the file that would have been renamed."""
    with pytest.raises(InputError, match="no folder") as caught:
        write_atomic(tmp_path / "missing" / "f", "new")
    assert caught.value.found == f"no folder {tmp_path / 'missing'}"
    assert ".part" not in str(caught.value)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """Reading and writing say that it is a folder."""
    with pytest.raises(InputError, match="found a folder; expected a readable file"):
        read_bytes(tmp_path)
    with pytest.raises(InputError, match="found a folder; expected a file name"):
        write_atomic(tmp_path, "new")


@pytest.mark.parametrize("where", ["missing/f", "file/f", "a\0b"])
def test_a_place_that_cannot_be_written(tmp_path: Path, where: str) -> None:
    """A folder that is missing, or is a file, is the user's error."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="Nothing was changed"):
        write_atomic(tmp_path / where, "new")


def test_a_folder_that_cannot_be_synced_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the rename the message no longer says that nothing was changed."""
    monkeypatch.setattr("hocket.files.fsync_folder", failing(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(InputError, match="written whole"):
        write_atomic(tmp_path / "f", "new")
    assert (tmp_path / "f").read_text() == "new"


# --- JSON and YAML


@pytest.mark.parametrize(
    ("text", "place", "found"),
    [
        ('{"a": 1,\n"b" 2}', "f.json, line 2", "'2}'"),
        ("# A title\n\nA text.\n", "f.json, line 1", "'# A title'"),
        ('{"a": [1,\n2', "f.json, line 2", "an end inside the document"),
        ('{"a": [1,\n"2', "f.json, line 2", "an end inside the document"),
        ("\x1b[31m" + "x" * 200, "f.json, line 1", repr("\x1b[31m" + "x" * 35)),
        ("[" * 100_000, "f.json", "recursion"),
        (b"\xff\xfe\xfa", "f.json", "byte 0xfa at 2"),
        (b'{"a": "\xce"}', "f.json", "byte 0xce at 7"),
        ("9" * 5000, "f.json", "digits"),
        ('{"a": NaN}', "f.json", "NaN"),
        ("[Infinity]", "f.json", "Infinity"),
        ('{"a": {"b": 1, "b": 2}}', "f.json", "'b' stands twice"),
        ("", "f.json", "an empty file"),
        (" \n", "f.json", "an empty file"),
    ],
)
def test_bad_json_is_an_input_error(text: str | bytes, place: str, found: str) -> None:
    """Wrong syntax, endless nesting, bad UTF-8, endless numbers, NaN and double keys: one clear error each, in our words."""
    with pytest.raises(InputError, match="a JSON document") as caught:
        parse_json(text, "f.json")
    assert found in caught.value.found
    assert caught.value.place == place
    assert "Expecting" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "an empty file"),
        ("strategy: flush\nstages: []\n", "what seems to be a plan"),
        ("format: hocket-cluster-1\n", "what seems to be a cluster"),
        ("a: 1\n", ""),
        ('{"traceEvents": [Infinity]}', ""),
        (b' {"levels": [}', ""),
        ("# A title\n\nA text: with a colon: or two.\n", ""),
        (b"\xff", ""),
        ("strategy: flush\nstages: []\n" + "#" * 2**17, ""),
    ],
)
def test_a_document_of_another_format(text: str | bytes, found: str) -> None:
    """Where JSON is expected, a file of ours in YAML is known for what it is; of what is none of ours nothing is said."""
    assert seems_instead(text) == found


@pytest.mark.parametrize(
    ("text", "place", "found"),
    [
        ("a: 1\na: 2\n", "f.yaml, line 2", "'a: 2': duplicate key"),
        ("a: [1, 2", "f.yaml, line 1", "expected ',' or ']'"),
        ("a: [1,\n", "f.yaml, line 2", "'the end of the file'"),
        ("# A title\n\n*An alias* with: words\n", "f.yaml, line 3", "'*An alias* with: words': undefined alias"),
        (b"a: 1\n\tb: \xc3\xa4\n", "f.yaml, line 2", "'b: ä': character '\\t'"),
        ("!!python/object/apply:os.system ['true']", "f.yaml, line 1", "could not determine a constructor"),
        ("a: 1\n---\nb: 2\n", "f.yaml, line 2", "but found another document"),
        ("[" * 20_000, "f.yaml", "recursion"),
        (b"\xff\xfe\xfa", "f.yaml", ""),
        ("a: \0", "f.yaml", "special characters"),
        ("? [a, {b: c}]\n: d", "f.yaml", ""),
    ],
)
def test_bad_yaml_is_an_input_error(text: str | bytes, place: str, found: str) -> None:
    """Double keys, wrong syntax, tags, several documents, endless nesting, odd bytes and keys: one clear error each."""
    with pytest.raises(InputError, match="a YAML document") as caught:
        parse_yaml(text, "f.yaml")
    assert found in caught.value.found
    assert caught.value.place == place
    assert "byte string" not in caught.value.found


def test_an_alias_bomb_is_refused() -> None:
    """Nine levels of nine aliases, 387 million nodes in 300 bytes, are refused at once."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    with pytest.raises(InputError, match="aliases"):
        parse_yaml("\n".join(lines), "f.yaml")


def test_an_alias_to_itself_is_refused() -> None:
    """A document that contains itself has no end."""
    with pytest.raises(InputError, match="aliases"):
        parse_yaml("a: &a [*a]", "f.yaml")


def test_a_modest_alias_is_fine() -> None:
    """An alias that saves typing is read as if written out."""
    assert parse_yaml("a: &a {x: 1, y: 2}\nb: *a\n", "f") == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 2}}


@pytest.mark.parametrize(("text", "value"), [("no", "no"), ("1e9", 1e9), ("012", 12), ("1:30", "1:30"), ("~", None)])
def test_yaml_is_version_1_2(text: str, value: Any) -> None:
    """Words stay words and numbers are decimal: the surprises of YAML 1.1 are gone."""
    assert parse_yaml(f"a: {text}", "f") == {"a": value}


@given(PLAIN)
def test_yaml_round_trip(data: Any) -> None:
    """Reading is the inverse of writing, for any plain data."""
    assert parse_yaml(write_yaml({"data": data}), "f") == {"data": data}


# --- checking against a dataclass


def test_a_whole_is_built() -> None:
    """Lists become tuples, dictionaries dataclasses; `as_data` is the inverse."""
    whole = Whole("t", (Part(1), Part(2, "b")), Part(3))
    data = as_data(whole)
    assert data["parts"][1] == {"size": 2, "name": "b"}
    assert read_as(Whole, data, "f") == whole


@pytest.mark.parametrize(
    ("data", "place", "found", "expected", "step"),
    [
        ({"titel": "t"}, "f: titel", "unknown key 'titel'", "one of title, parts, extra", "Did you mean 'title'?"),
        (
            {"title": "t", "parts": [{"size": 1}, {"sizes": 1}]},
            "f: parts.1.sizes",
            "unknown key 'sizes'",
            "one of size, name",
            "Did you mean 'size'?",
        ),
        ({"title": "t", "extra": {"size": 1, "x": 2}}, "f: extra.x", "unknown key 'x'", "one of size, name", ""),
        ({}, "f: title", "nothing", "a value for this key", ""),
        ({"title": "t", "parts": [{"size": "many"}]}, "f: parts.0.size", "'many'", "a whole number", ""),
        ({"title": "t", "parts": 3}, "f: parts", "3", "a list", ""),
        ({"title": "t", "extra": [1]}, "f: extra", "[1]", "a mapping", ""),
        ({"title": 1}, "f: title", "1", "a text", ""),
        ({"title": "t", "parts": [{"size": 1}, {"size": 0}]}, "f: parts.1.size", "0", ">= 1", ""),
        ({"title": "t", "extra": {"size": 0}}, "f: extra.size", "0", ">= 1", ""),
        ([], "f", "[]", "", ""),
        (None, "f", "nothing", "a mapping", ""),
    ],
)
def test_wrong_data_names_the_key(data: Any, place: str, found: str, expected: str, step: str) -> None:
    """The error names the path of the key, what was found, what was expected, and the nearest valid name."""
    with pytest.raises(InputError) as caught:
        read_as(Whole, data, "f")
    error = caught.value
    assert (error.place, error.found, error.next_step) == (place, found, step)
    assert expected in error.expected


def test_what_a_dataclass_refuses_itself_keeps_its_words() -> None:
    """The message of `__post_init__` comes through, with the file in front."""
    with pytest.raises(InputError, match=r"^f: size: found 0; expected >= 1$"):
        read_as(Part, {"size": 0}, "f")


def test_a_long_value_is_cut_in_the_message() -> None:
    """A wrong value of a megabyte does not become a message of a megabyte."""
    with pytest.raises(InputError) as caught:
        read_as(Part, {"size": "x" * 10**6}, "f")
    assert len(str(caught.value)) < 400


def test_digest_is_sha256() -> None:
    """The digest of nothing is the well-known one."""
    assert digest(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
