"""files.py: read bounded, written whole or not at all."""

import errno
import gzip
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hocket.errors import InputError
from hocket.util.files import check_folder_to_write, digest, place_to_write, read_bytes, write_atomic


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
    """The size limit counts decompressed bytes.

    64 MiB of zeros, compressed to 64 KiB, exceed a limit of 1 MiB.
    """
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
    """A failed sync or rename leaves the old file unchanged.

    No temporary file is left beside it, and the error says so.
    """
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
    """A write that the kernel refuses midway leaves the old file unchanged.

    The process may not write files above 64 KiB.
    """
    path = tmp_path / "f"
    path.write_text("old")
    script = (
        "import resource, signal, sys\n"
        "from hocket.errors import InputError\n"
        "from hocket.util.files import write_atomic\n"
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
    """A folder that is not writable, also for root."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder and may(path, mode))
    return folder


def test_a_folder_that_takes_no_files(read_only: Path) -> None:
    """A folder that is not writable is refused before any write.

    Folders inside it are refused too.
    """
    with pytest.raises(InputError, match=f"no permission to write into {read_only}") as caught:
        place_to_write(read_only / "f")
    assert caught.value.place == str(read_only / "f")
    for path in (read_only, read_only / "new" / "newer"):
        with pytest.raises(InputError, match=f"^here: found no permission to write into {read_only}"):
            check_folder_to_write(path, "here")


def test_folders_to_write(tmp_path: Path) -> None:
    """A folder that exists or can be created is accepted as an output folder.

    A file, or a path inside a file, is refused.
    """
    check_folder_to_write(tmp_path, "here")
    check_folder_to_write(tmp_path / "new" / "newer", "here")
    (tmp_path / "f").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    for name, found in (
        ("f", "a file"),
        ("f/g", f"a place inside {tmp_path / 'f'}, which is a file"),
        ("dangling", "a file"),
    ):
        with pytest.raises(InputError, match="a folder, or a free name") as caught:
            check_folder_to_write(tmp_path / name, "here")
        assert caught.value.found == found


def test_a_symbolic_link_stays(tmp_path: Path) -> None:
    """Writing to a symbolic link writes its target and keeps the link.

    This holds for a chain of links and for a link to a missing file.
    """
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
    """/dev/null remains a device after a write, also through a link."""
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
    """Writing to /dev/stdout writes into the open file or pipe.

    The file behind standard output is not replaced.
    """
    script = "from hocket.util.files import write_atomic; write_atomic('/dev/stdout', 'new\\n')"
    with open(tmp_path / "out", "w") as out:
        before = os.fstat(out.fileno()).st_ino
        subprocess.run([sys.executable, "-c", script], stdout=out, check=True)
    assert ((tmp_path / "out").read_text(), (tmp_path / "out").stat().st_ino) == ("new\n", before)
    piped = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert piped.stdout == b"new\n"


def test_a_missing_folder_is_named_and_not_the_file_aside(tmp_path: Path) -> None:
    """The error names the missing folder, not the temporary file."""
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
    monkeypatch.setattr("hocket.util.files.fsync_folder", failing(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(InputError, match="written whole"):
        write_atomic(tmp_path / "f", "new")
    assert (tmp_path / "f").read_text() == "new"


def test_digest_is_sha256() -> None:
    """The digest of nothing is the well-known one."""
    assert digest(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_only_files_of_a_kind_are_replaced(tmp_path: Path) -> None:
    """Only a file of the same kind is replaced.

    A missing file, an empty file and a file with the expected beginning are accepted. A file with other content is
    refused.
    """
    from hocket.util.files import check_replaced

    path = tmp_path / "plan.yaml"
    for text in (None, "", "format: hocket-plan-1\nstrategy: flush\n"):
        if text is not None:
            path.write_text(text)
        check_replaced(path, "plan", "format: hocket-plan")
    path.write_text("import torch\n")
    with pytest.raises(InputError, match="a file that is not a plan"):
        check_replaced(path, "plan", "format: hocket-plan")
    assert path.read_text() == "import torch\n"


def test_what_was_made_is_replaced_and_what_was_edited_is_not(tmp_path: Path) -> None:
    """A line tells both apart; without it a file is somebody's own."""
    from hocket.util.files import check_signed, signed

    path = tmp_path / "cluster.yaml"
    for text in (None, "", signed("levels: []\n", "us")):
        if text is not None:
            path.write_text(text)
        check_signed(path, "cluster that was measured")
    for text in ("levels: []\n", path.read_text() + "name: mine\n", "# by me\n", "# by \xff"):
        path.write_text(text, encoding="latin-1")
        with pytest.raises(InputError, match="was edited"):
            check_signed(path, "cluster that was measured")
        assert path.read_text(encoding="latin-1") == text
