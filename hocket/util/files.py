"""Files: bounded reads and atomic writes."""

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
    """Read a whole file; '.gz' files are decompressed.

    A file of more than `limit_bytes` (decompressed) is refused. An uncompressed file that is too large is refused
    before it is read.

    Raises:
        InputError: the file cannot be read, or is too large.
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
    """Read a whole UTF-8 text file, without a byte order mark; '.gz' files are decompressed.

    Raises:
        InputError: the file cannot be read, is larger than `limit_bytes` (decompressed), or is not UTF-8.
    """
    try:
        return read_bytes(path, limit_bytes).decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise InputError(str(path), odd_byte(error), "a text in UTF-8") from None


def odd_byte(error: UnicodeDecodeError) -> str:
    """Describe the first byte that is not UTF-8, and its position."""
    return f"byte {error.object[error.start]:#04x} at {error.start}"


def write_atomic(path: str | Path, content: bytes | str) -> None:
    """Write a file atomically: temporary file, fsync, rename, fsync of the folder.

    A symbolic link is kept, and its target is written. A device or a pipe cannot be replaced, so the content is
    written directly into it.

    Raises:
        InputError: the file cannot be written (no such folder, no permission, disk full). An old file is unchanged,
            and no temporary file is left. If only the folder's fsync fails, the new file is in place.
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
        except BaseException:  # also on Ctrl-C, leave no temporary file
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            raise
    except OSError as error:  # the error's own text would name the temporary file
        why = error.strerror or str(error)
        raise InputError(str(path), why, "a writable path", "Nothing was changed.") from None
    try:
        fsync_folder(target.parent)
    except OSError as error:
        step = "The file is written whole, but a power cut may lose it."
        raise InputError(str(target.parent), str(error), "a folder that can be synced", step) from None


def place_to_write(path: str | Path) -> Path | None:
    """Return the regular file that writing to `path` creates or replaces.

    Commands call this first, so that a wrong path is refused before minutes of work.

    Returns:
        The file with links resolved; None for a device, a pipe or an open handle.

    Raises:
        InputError: `path` is a folder or invalid, or its folder does not exist or is not writable.
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

    A mistyped option must not overwrite a job's source file.

    Arguments:
        kind: name of the file kind that may be replaced, for the message.
        mark: text within the first 256 bytes of each file of that kind.

    Raises:
        InputError: the file exists, is not empty, and does not contain the mark.
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
        kind: name of the file kind that may be replaced, for the message.
        mark: text within the first 256 bytes of each file of that kind.

    Raises:
        InputError: `path` is a folder or invalid, its folder does not exist or is not writable, or the file exists, is
            not empty, and does not contain the mark.
    """
    place_to_write(path)
    check_replaced(path, kind, mark)


def signed(text: str, maker: str) -> str:
    """Prepend a line with the text's maker and digest; it is a comment in YAML.

    Arguments:
        maker: name of the program that wrote the text.
    """
    return f"# by {maker}, {_SIGNED} {digest(text.encode())}\n{text}"


def check_signed(path: str | Path, kind: str) -> None:
    """Refuse to replace a file that `signed` did not make, or that was edited since.

    An edited file cannot be generated again.

    Arguments:
        kind: name of the file kind that may be replaced, for the message.

    Raises:
        InputError: the file exists, is not empty, and is unsigned or edited.
    """
    path = Path(path)
    if path.is_file() and path.stat().st_size:
        line, _, text = read_bytes(path).partition(b"\n")
        if not line.startswith(b"# by ") or not line.decode(errors="replace").endswith(f"{_SIGNED} {digest(text)}"):
            step = "Name another one with -o, or move it away. Nothing was changed."
            raise InputError(str(path), f"a file that is not a {kind}, or was edited", f"a new file, or a {kind}", step)


def check_folder_to_write(path: str | Path, place: str) -> None:
    """Refuse a folder that is not writable or cannot be created.

    Arguments:
        place: place that the error names, such as an option.

    Raises:
        InputError: the folder is not writable, or cannot be created.
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

    Such a file must not be replaced: the open handle would keep writing to the old file.
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
    """Compute the SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
