"""Real text without a download: the standard library's own source files, as bytes.

Every Python installation has them. The order is alphabetical and the amount bounded, so that two machines with the
same Python train on the same text.
"""

import sysconfig
from pathlib import Path

import torch
from torch import Tensor

from hocket.errors import InputError
from hocket.util.files import read_bytes

VOCAB = 256


def text_bytes(path: str | Path | None = None, limit_bytes: int = 2**21) -> bytes:
    """Read at most `limit_bytes` of a text.

    Arguments:
        path: file to read; None for the modules of the standard library in alphabetical order.

    Raises:
        InputError: the file cannot be read.
    """
    if path is not None:
        return read_bytes(Path(path))[:limit_bytes]
    parts, total = [], 0
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        parts.append(file.read_bytes())
        total += len(parts[-1])
        if total >= limit_bytes:
            break
    return b"".join(parts)[:limit_bytes]


class Text:
    """Dataset for byte-level language modelling.

    Sample i is `seq` consecutive tokens, and for each of them the next token as its target.

    Arguments:
        path: file to read; None for the modules of Python's standard library in alphabetical order.
        limit_bytes: maximum number of bytes to read.

    Raises:
        InputError: the text has at most `seq` bytes.
    """

    def __init__(self, seq: int, path: str | Path | None = None, limit_bytes: int = 2**21) -> None:
        raw = text_bytes(path, limit_bytes)
        self.seq = seq
        self.tokens = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.zeros(0, dtype=torch.uint8)
        if len(self) < 1:
            raise InputError(str(path or "text"), f"{len(raw)} bytes", f"more than seq = {seq} bytes")

    def __len__(self) -> int:
        return max(0, (len(self.tokens) - 1) // self.seq)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        if not 0 <= i < len(self):
            raise IndexError(i)
        piece = self.tokens[i * self.seq : (i + 1) * self.seq + 1].long()
        return piece[:-1], piece[1:]
