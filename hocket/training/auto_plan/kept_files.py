"""Kept files: profiles, links and plans beside a job, found by what decided them.

The name of a kept file is KIND-KEY-CONTENT.SUFFIX. KEY is a digest of everything that decided the file, so a changed
job finds no file. CONTENT is a digest of the file's bytes, so a damaged or edited file is recognized. A file is written
atomically, and needs no index.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hocket.errors import InputError
from hocket.util.files import digest, read_bytes, write_atomic

FOLDER = ".hocket"
_LETTERS = 12
_IGNORED = "# Measurements and plans of this machine, made by hocket train.\n*\n"


def key_of(decides: Mapping[str, Any]) -> str:
    """Compute the key of everything that decides a file: a digest of plain data."""
    return digest(json.dumps(decides, sort_keys=True).encode())[:_LETTERS]


def key_in(path: Path) -> str:
    """Return the key in the name of a kept file."""
    return path.name.split("-")[1]


@dataclass(frozen=True)
class KeptFiles:
    """Folders in which files are found and kept.

    Attributes:
        folder: folder in which kept files are looked up; it need not exist.
        written: folder for new files; another one than `folder` if that cannot be written.
        damaged: names of damaged files that were found; they are not used.
    """

    folder: Path
    written: Path
    damaged: list[str] = field(default_factory=list)

    def find(self, kind: str, key: str, suffix: str) -> Path | None:
        """Return the kept file of a kind with this key; None if there is no undamaged one."""
        found: Path | None = None
        for path in self._all(kind, key, suffix):
            try:
                content = read_bytes(path)
            except InputError:
                content = b""
            if path.name == _name(kind, key, content, suffix):
                found = path
            elif path.name not in self.damaged:
                self.damaged.append(path.name)
        return found

    def keep(self, kind: str, key: str, text: str, suffix: str) -> Path:
        """Write a file, and remove earlier files of this kind with the same key.

        Raises:
            InputError: the file cannot be written.
        """
        try:
            self.written.mkdir(exist_ok=True)
        except OSError as error:
            raise InputError(str(self.written), error.strerror or str(error), "a writable folder") from None
        if self.written == self.folder and not (ignored := self.folder / ".gitignore").exists():
            write_atomic(ignored, _IGNORED)
        path = self.written / _name(kind, key, text.encode(), suffix)
        write_atomic(path, text)
        for other in self._all(kind, key, suffix):
            if other != path:
                with suppress(OSError):  # a folder that cannot be written
                    other.unlink(missing_ok=True)
        return path

    def _all(self, kind: str, key: str, suffix: str) -> list[Path]:
        pattern = re.compile(f"{re.escape(kind)}-{key}-[0-9a-f]{{{_LETTERS}}}{re.escape(suffix)}")
        return sorted(path for path in self.folder.glob(f"{kind}-{key}-*") if pattern.fullmatch(path.name))


def _name(kind: str, key: str, content: bytes, suffix: str) -> str:
    return f"{kind}-{key}-{digest(content)[:_LETTERS]}{suffix}"
