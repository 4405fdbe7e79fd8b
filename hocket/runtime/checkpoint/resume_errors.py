"""Errors of a run that cannot resume, because there is no checkpoint.

This file does not import torch, because the errors are raised before a worker starts.
"""

from pathlib import Path

from hocket.errors import InputError


def no_checkpoint(folder: Path) -> InputError:
    """Build the error for a resume from a folder without a checkpoint."""
    found = "an empty folder" if folder.is_dir() else "no such folder"
    if folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
        found = "a folder without checkpoints"
    hint = "Check the name; or use --resume auto, which starts at step 0 if there is no checkpoint."
    return InputError(f"checkpoint in {folder}", found, "a checkpoint to resume from (step-...)", hint)
