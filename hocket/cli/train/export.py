"""`hocket export`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from hocket.cli.output.options import Json


@dataclass(frozen=True)
class ExportFiles:
    """Options about the files of an export, as given on the command line."""

    format: Annotated[
        str,
        typer.Option(
            help="safetensors; torch (a .pt file of torch.save); or hf (the model's own save_pretrained, needs --job)."
        ),
    ] = "safetensors"
    job: Annotated[
        Path | None,
        typer.Option(
            help="The job file. With it, names are those of model.state_dict(): tied tensors have all their names (in "
            "safetensors the first one), and non-persistent buffers are left out."
        ),
    ] = None
    max_shard: Annotated[
        str | None, typer.Option(help="Maximum size of a file, such as 5GB; by default one file. Not for torch.")
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Replace the files of an earlier export.")] = False
    ema: Annotated[
        bool, typer.Option("--ema", help="Write the moving average of the weights (Job.ema) in place of the weights.")
    ] = False


def export(
    checkpoint: Annotated[
        Path, typer.Argument(help="A checkpoint (step-...), or the folder of a run: its newest undamaged checkpoint.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="New or empty folder for the files.")],
    files: ExportFiles,
    json: Json = False,
) -> None:
    """Write the model's weights of a checkpoint for other programs.

    Any plan may have written the checkpoint; the files hold whole tensors under the model's own names.

    Example: hocket export checkpoints -o weights --format safetensors
    """
    from hocket.cli.output.tables import print_json
    from hocket.printable import say
    from hocket.runtime.checkpoint.export.export import ExportOptions, export_weights
    from hocket.util.units import read_size, show_bytes, show_count

    largest = None if files.max_shard is None else read_size(files.max_shard, "--max-shard")
    options = ExportOptions(files.format, largest, files.force, files.ema)
    found = export_weights(checkpoint, output, files.job, options)
    if json:
        paths = {"checkpoint": str(found.checkpoint), "files": [str(file) for file in found.files]}
        print_json({**asdict(found), **paths})
        return
    for note in found.notes:
        say(f"note: {note}")
    size = show_bytes(found.weights_bytes)
    say(f"{found.checkpoint}: {show_count(found.tensors, 'tensor')}, {size}, written to {output}:")
    for file in found.files:
        say(f"  {file.relative_to(output)}")
