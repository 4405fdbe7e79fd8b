"""Output of a profile: the file, and a table of all layers or of the first and the slowest of many."""

from pathlib import Path
from typing import TYPE_CHECKING

from hocket.cli.output.table import in_bytes, in_seconds, print_table
from hocket.printable import say
from hocket.util.units import show_seconds

if TYPE_CHECKING:
    from hocket.profiling.profile import ModelProfile

MOST_SHOWN = 40  # show all layers up to this number
FIRST, HEAVIEST = 8, 12  # of more layers, show the first 8 and the 12 slowest


def write_profile(found: "ModelProfile", path: Path, json: bool) -> None:
    """Write a profile to its file, and print it as a table or as JSON."""
    found.save(path)
    if json:
        from hocket.cli.output.tables import print_json
        from hocket.util.schema import as_data

        print_json({**as_data(found), "path": str(path)})
        return
    print_profile(found, path)
    print(f"wrote {path}")


def print_profile(found: "ModelProfile", path: Path) -> None:
    """Print a profile as a table of layers.

    Arguments:
        path: file of the profile, to name if layers are left out.
    """
    from hocket.planning.predict.model_differences import differences

    last = len(found.microbatch_sizes) - 1
    shown = layers_shown([layer.forward_s[last] + layer.backward_s[last] for layer in found.layers])
    layers = [found.layers[k] for k in shown]
    second, times = in_seconds([s for layer in layers for s in (layer.forward_s[last], layer.backward_s[last])])
    byte, sizes = in_bytes([b for layer in layers for b in (layer.stash_bytes[last], layer.weights_bytes)])
    rows = [
        [layer.name, layer.kind, *times[2 * k : 2 * k + 2], *sizes[2 * k : 2 * k + 2], ", ".join(layer.notes)]
        for k, layer in enumerate(layers)
    ]
    title = f"{found.name} on {found.device_type}, microbatch {found.microbatch_sizes[last]} of {list(found.microbatch_sizes)}"
    columns = ["layer", "kind", f"fwd ({second})", f"bwd ({second})", f"stash ({byte})", f"weights ({byte})", "notes"]
    if not any(layer.notes for layer in layers):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    print_table(title, columns, rows, right=(2, 3, 4, 5), drop=(1,))
    if len(shown) < len(found.layers):
        ours, whole = (
            sum(layer.forward_s[last] + layer.backward_s[last] for layer in some) for some in (layers, found.layers)
        )
        share = f", {ours / whole:.0%} of {show_seconds(whole)}" if whole > 0 else ""
        say(
            f"  shown: {len(shown)} of {len(found.layers):,} layers, the first {FIRST} and the {HEAVIEST} "
            f"slowest{share}; all are in {path} and in the output of --json"
        )
    if found.compiled is not None:
        say(f"  {found.compiled.line(last)}")
    for note in (*found.notes, *(one.text for one in differences(found.layers, found.loss_parts))):
        say(f"  note: {note}")


def layers_shown(seconds: list[float]) -> list[int]:
    """Choose the layers to print: all, or the first and the slowest of many.

    Arguments:
        seconds: forward and backward seconds of each layer, added up.

    Returns:
        Indices of the layers, in ascending order.
    """
    if len(seconds) <= MOST_SHOWN:
        return list(range(len(seconds)))
    heaviest = sorted(range(len(seconds)), key=lambda k: (-seconds[k], k))[:HEAVIEST]
    return sorted({*range(FIRST), *heaviest})
