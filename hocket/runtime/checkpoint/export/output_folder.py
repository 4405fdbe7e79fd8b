"""Output folder of an export: all of its files appear, or none.

Files are written to a hidden folder beside the output folder, and moved when all are on disk.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hocket.errors import InputError
from hocket.runtime.checkpoint.checkpoint import MANIFEST
from hocket.util.files import check_folder_to_write, fsync_folder

# Files of an earlier export: one that is not replaced would be read in place of the new ones.
_WEIGHTS = re.compile(r"model(-\d{5,}-of-\d{5,})?\.safetensors|model\.safetensors\.index\.json|model\.pt")


def check_output(path: Path, force: bool) -> None:
    """Refuse an output folder that cannot be written or that has files.

    Arguments:
        force: True to accept a folder with files.

    Raises:
        InputError: not a writable folder; a checkpoint; or a folder with files, without `force`.
    """
    check_folder_to_write(path, str(path))
    if (path / MANIFEST).exists():
        raise InputError(str(path), "a checkpoint", "another folder", "Nothing was changed.")
    there = sorted(one.name for one in path.iterdir()) if path.is_dir() else []
    if there and not force:
        step = "Name another one with -o, or pass --force to replace the files of an earlier export."
        raise InputError(str(path), f"a folder with files, such as {there[0]}", "a new or empty folder", step)


@contextmanager
def output_folder(path: Path) -> Iterator[Path]:
    """Context with an empty folder to write to; at its end, the files are moved to `path`.

    If `path` has files, files of the same name are replaced, and weights of an earlier export are removed. All other
    files stay. After an error nothing was changed.

    Raises:
        InputError: disk full, or no permission.
    """
    path = Path(os.path.realpath(path))
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        yield part
        _sync(part)
        if path.is_dir():
            _move_files(part, path)
        else:
            part.rename(path)
        fsync_folder(path.parent)
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(str(path), why, "a writable folder with enough disk space") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Fsync all files and folders below a folder."""
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
        else:
            fsync_folder(file)
    fsync_folder(folder)


def _move_files(part: Path, path: Path) -> None:
    """Move all files to an existing folder, the index last, and remove weights of an earlier export."""
    files = sorted((file.relative_to(part) for file in part.rglob("*") if file.is_file()), key=_index_last)
    for file in files:
        (path / file).parent.mkdir(parents=True, exist_ok=True)
        os.replace(part / file, path / file)
    for old in path.iterdir():
        if _WEIGHTS.fullmatch(old.name) and Path(old.name) not in files:
            old.unlink()
    fsync_folder(path)


def _index_last(file: Path) -> tuple[bool, str]:
    return file.suffix == ".json", str(file)
