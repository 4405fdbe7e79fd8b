"""Files: read bounded, written whole or not at all."""

import gzip
import hashlib
import os
import stat
import zlib
from contextlib import suppress
from pathlib import Path

from hocket.errors import InputError, nearest

MAX_FILE_BYTES = 256 * 2**20
_SIGNED = "SHA-256 of what follows:"


def read_bytes(path: str | Path, limit_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Read a whole file, unpacking '.gz'.

    More than `limit_bytes` (unpacked) is refused; a large file is refused unread.
    """
    path = Path(path)
    try:
        packed = path.suffix == ".gz"
        with gzip.open(path, "rb") if packed else open(path, "rb") as stream:
            large = not packed and os.fstat(stream.fileno()).st_size > limit_bytes
            content: bytes = b"" if large else stream.read(limit_bytes + 1)
    except FileNotFoundError:
        near = nearest(path.name, [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else [])
        raise InputError(str(path), "no such file", "a readable file", near) from None
    except IsADirectoryError:
        raise InputError(str(path), "a folder", "a readable file") from None
    except (OSError, EOFError, ValueError, zlib.error) as error:  # ValueError: a NUL inside the name
        raise InputError(str(path), str(error), "a readable file") from None
    if large or len(content) > limit_bytes:
        raise InputError(str(path), f"more than {limit_bytes} bytes", f"at most {limit_bytes} bytes")
    return content


def read_text(path: str | Path, limit_bytes: int = MAX_FILE_BYTES) -> str:
    """Read a UTF-8 text file as `read_bytes` does, without a byte order mark."""
    try:
        return read_bytes(path, limit_bytes).decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise InputError(str(path), odd_byte(error), "a text in UTF-8") from None


def odd_byte(error: UnicodeDecodeError) -> str:
    """The byte that is no UTF-8, and where it stands."""
    return f"byte {error.object[error.start]:#04x} at {error.start}"


def write_atomic(path: str | Path, content: bytes | str) -> None:
    """Write a file whole or not at all: aside, fsync, rename, fsync of the folder.

    A symbolic link stays, what it points to is written. What is there and no regular file (a device, a pipe) cannot be
    replaced: the content is written straight into it.

    Raises:
        InputError: it could not be written (no such folder, no permission, disk full); the old file, or its absence,
            is as before, and nothing is left beside it.
    """
    raw = content.encode() if isinstance(content, str) else content
    target = place_to_write(path)
    if target is None:
        try:
            with open(path, "wb") as stream:
                stream.write(raw)
        except OSError as error:
            raise InputError(str(path), error.strerror or str(error), "a writable path") from None
        return
    aside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        try:
            with open(aside, "wb") as stream:
                stream.write(raw)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(aside, target)
        except BaseException:  # Ctrl-C as well leaves nothing behind
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            raise
    except OSError as error:  # in its own words it would name the file aside
        why = error.strerror or str(error)
        raise InputError(str(path), why, "a writable path", "Nothing was changed.") from None
    try:
        fsync_folder(target.parent)
    except OSError as error:
        step = "The file is written whole, but a power cut may lose it."
        raise InputError(str(target.parent), str(error), "a folder that can be synced", step) from None


def place_to_write(path: str | Path) -> Path | None:
    """Regular file that writing to `path` creates or replaces.

    None for a device, a pipe or an open handle.

    Raises:
        InputError: a folder, or a name in a folder that does not exist or takes no files: before minutes of work, not after them.
    """
    path = Path(path)
    try:
        there = os.stat(path).st_mode
        if stat.S_ISDIR(there):
            raise InputError(str(path), "a folder", "a file name", "Nothing was changed.")
        if not stat.S_ISREG(there) or _is_handle(path):
            return None
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # ValueError: a NUL inside the name
        raise InputError(str(path), str(error), "a writable path", "Nothing was changed.") from None
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        step = f"Make {target.parent} first. Nothing was changed."
        raise InputError(str(path), f"no folder {target.parent}", "a path in an existing folder", step)
    if not _takes_files(target.parent):
        found = f"no permission to write into {target.parent}"
        raise InputError(str(path), found, "a writable path", "Nothing was changed.")
    return target


def check_replaced(path: str | Path, kind: str, mark: str) -> None:
    """Refuse to replace a file of another kind.

    A wrong option must not cost a job's source.

    Arguments:
        kind: what may be replaced, in words; mark: what stands at the beginning of each such file.

    Raises:
        InputError: the file is there, is not empty, and is something else.
    """
    path = Path(path)
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            if mark.encode() not in file.read(256):
                raise InputError(
                    str(path), f"a file that is not a {kind}", f"a new file, or a {kind}", "Nothing was changed."
                )


def check_output(path: str | Path, kind: str, mark: str) -> None:
    """Check that an output can be written, before minutes of work.

    An output that would replace a file of another kind is refused.

    Arguments:
        kind: what may be replaced, in words; mark: what stands at the beginning of each such file.

    Raises:
        InputError: see `place_to_write` and `check_replaced`.
    """
    place_to_write(path)
    check_replaced(path, kind, mark)


def signed(text: str, maker: str) -> str:
    """A text below a line (a comment in YAML) with its maker and its digest."""
    return f"# by {maker}, {_SIGNED} {digest(text.encode())}\n{text}"


def check_signed(path: str | Path, kind: str) -> None:
    """Refuse to replace a text that is not signed, or was edited.

    Only an unedited file can be generated again.

    Arguments:
        kind: what may be replaced, in words.

    Raises:
        InputError: the file is there, is not empty, and is something else.
    """
    path = Path(path)
    if path.is_file() and path.stat().st_size:
        line, _, text = read_bytes(path).partition(b"\n")
        if not line.startswith(b"# by ") or not line.decode(errors="replace").endswith(f"{_SIGNED} {digest(text)}"):
            step = "Name another one with -o, or move it away. Nothing was changed."
            raise InputError(str(path), f"a file that is not a {kind}, or was edited", f"a new file, or a {kind}", step)


def check_folder_to_write(path: str | Path, place: str) -> None:
    """Refuse a folder that cannot be written to.

    It is there and takes no files, or is not there and cannot be made.

    Raises:
        InputError: at `place`.
    """
    whole = Path(path).absolute()
    there = next(one for one in (whole, *whole.parents) if os.path.lexists(one))
    if not there.is_dir():
        found = "a file" if there == whole else f"a place inside {there}, which is a file"
        raise InputError(place, found, "a folder, or a free name")
    if not _takes_files(there):
        raise InputError(place, f"no permission to write into {there}", "a writable folder")


def _takes_files(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def _is_handle(path: Path) -> bool:
    """True for the name of an open file, such as /dev/stdout.

    Replacing that file would lose it.
    """
    names = (os.readlink(path) if path.is_symlink() else "", os.path.realpath(path.parent) + "/")
    return any(name.startswith("/proc/") for name in names)


def fsync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(content: bytes) -> str:
    """The SHA-256 of some bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
