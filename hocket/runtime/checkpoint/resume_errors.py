"""Resume errors: raised if a run is to resume and no checkpoint is there.

No torch: they are raised before a worker starts.
"""

from pathlib import Path

from hocket.errors import InputError


def no_checkpoint(folder: Path) -> InputError:
    """The error of a run that is to resume from a folder without a checkpoint."""
    found = "an empty folder" if folder.is_dir() else "no such folder"
    if folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
        found = "a folder without checkpoints"
    hint = "Check the name; or use --resume auto, which starts at step 0 where there is no checkpoint."
    return InputError(f"checkpoint in {folder}", found, "a checkpoint to resume from (step-...)", hint)
