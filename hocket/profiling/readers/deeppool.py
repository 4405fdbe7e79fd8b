"""Reader of DeepPool's layer profiles (`.prof` and `.txt`).

Format (seojinpark/DeepPool): `kind{json parameters}[batch][input shape] figures` in right-aligned lines, one block
for each batch size, each closed by a SUM line.
`.prof` figures: milliseconds of forward and backward together, microseconds forward, microseconds backward.
`.txt` figures: average milliseconds of both (then perhaps percentiles).

Conventions of the import:
- The file lists layers, not edges. They are read as a chain in the file's order. If the input of a layer differs in
  size from its predecessor's output, the layer is a branch; a note of the profile counts the branches.
- If only a total is given, one third is forward and two thirds are backward (the usual ratio). A note of the layer
  says so.
- A layer without some batch size of the file gets times by interpolation between its own sizes. A note of the layer
  says so.
- A layer of the job (`layers`) that is missing in the file is refused, unless `fill_bandwidth_bytes_per_s` is given.
  Then its forward costs (input + output + weights) / bandwidth, its backward twice that, and a note of the layer says
  so.
- A layer's stash is its own output. Inside a ResnetBottleneck more is kept, so that is a lower bound.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hocket.errors import InputError
from hocket.profiling.layer import Layer, Tensor
from hocket.profiling.profile import ModelProfile
from hocket.profiling.readers._deeppool_layer import LayerKey, output_shape, weights_bytes, weights_known
from hocket.profiling.readers._lines import lines, number

_LINE = re.compile(
    r"^\s*(?P<kind>\w+)(?P<json>\{\S*\})\[(?P<batch>\d{1,9})\](?:\[(?P<shape>[\d,]+)\]|(?P<flat>\d+))(?P<rest>.*)$"
)
Times = dict[int, tuple[float, float]]  # batch size -> seconds forward, backward


def read(
    path: str | Path,
    *,
    layers: Sequence[str] | None = None,
    fill_bandwidth_bytes_per_s: float | None = None,
    device_type: str = "a100-40gb",
) -> ModelProfile:
    """Read one profile (`.prof` or `.txt`).

    Arguments:
        layers: the job's layers in order, each written `kind{json}[shape]`, for a file that does not list them all.
            By default the layers of the file.
        fill_bandwidth_bytes_per_s: bandwidth that gives the times of layers without a profile line. By default they
            are refused.

    Raises:
        InputError: a malformed line (with its number), or a layer without a profile line.
    """
    measured, order, total_only = _parse(path)
    sizes = tuple(sorted({batch for rows in measured.values() for times in rows for batch in times}))
    if not sizes:
        raise InputError(str(path), "no layers", "lines such as 'conv2d{...}[64][3,224,224]  1.6'")
    keys = order if layers is None else [_key(text, f"layers.{i}") for i, text in enumerate(layers)]
    seen: dict[LayerKey, int] = defaultdict(int)
    built: list[Layer] = []
    for i, key in enumerate(keys):
        rows = measured.get(key, [])
        # A key that occurs several times in a block belongs to several layers, in the order of the file.
        times = rows[min(seen[key], len(rows) - 1)] if rows else {}
        seen[key] += 1
        if not times:
            if fill_bandwidth_bytes_per_s is None:
                raise InputError(
                    f"{path}: layers.{i} {key}",
                    "a layer without a profile line",
                    "a line for this layer",
                    "Profile the layer, or give fill_bandwidth_bytes_per_s.",
                )
            times = _filled(key, sizes, fill_bandwidth_bytes_per_s, f"layers.{i}")
        built.append(_layer(i, key, times, sizes, total_only, filled=not rows))
    shapes = [output_shape(key, f"layers.{i}") for i, key in enumerate(keys)]
    branches = sum(
        int(np.prod(shape)) != int(np.prod(key.input_shape)) for shape, key in zip(shapes, keys[1:], strict=False)
    )
    notes = ["stash_bytes is each layer's own output", "optimizer_bytes is 1 x weights"]
    if branches:
        notes.append(f"{branches} layers do not read their predecessor's output: branches, read as a chain")
    tensors = tuple(
        Tensor(f"in{i}", i - 1, (i,), tuple(key.input_bytes * size for size in sizes), gradient=i > 0)
        for i, key in enumerate(keys)
    )
    return ModelProfile(
        name=Path(path).name.partition(".")[0],
        device_type=device_type,
        microbatch_sizes=sizes,
        layers=tuple(built),
        tensors=tensors,
        source="DeepPool layer profile",
        notes=tuple(notes),
    )


def _parse(path: str | Path) -> tuple[dict[LayerKey, list[Times]], list[LayerKey], bool]:
    """Read all lines of a profile.

    Returns:
        For each layer key, times of each occurrence in a block, by batch size; the layers of the longest block, in
        order; and True if the file gives only totals of forward and backward.
    """
    measured: dict[LayerKey, list[Times]] = defaultdict(list)
    blocks: dict[int, list[LayerKey]] = defaultdict(list)
    occurrence: dict[tuple[LayerKey, int], int] = defaultdict(int)
    total_only = not str(path).removesuffix(".gz").endswith(".prof")
    for place, line in lines(path):
        if line.lstrip().lower().startswith(("sum", "#")):
            continue
        match = _LINE.match(line)
        if match is None:
            raise InputError(place, repr(line.strip()[:80]), "'kind{json}[batch][shape] milliseconds ...'")
        shape = match["shape"] or match["flat"]
        key = LayerKey(match["kind"], match["json"], _shape(shape, place))
        batch = int(match["batch"])
        if batch < 1:
            raise InputError(place, "batch size 0", "at least one sample")
        figures = [number(text, place, "time") for text in match["rest"].split()]
        if not figures or (not total_only and len(figures) != 3):
            raise InputError(place, f"{len(figures)} figures", "1 to 4 figures" if total_only else "3 figures")
        turn = occurrence[key, batch]
        occurrence[key, batch] += 1
        if turn == len(measured[key]):
            measured[key].append({})
        measured[key][turn][batch] = _split(figures, total_only)
        blocks[batch].append(key)
        output_shape(key, place)
        weights_bytes(key, place)
    return measured, max(blocks.values(), key=len, default=[]), total_only


def _split(figures: list[float], total_only: bool) -> tuple[float, float]:
    total_s = figures[0] / 1e3
    if total_only or figures[1] + figures[2] == 0:
        return total_s / 3, total_s * 2 / 3
    share = figures[1] / (figures[1] + figures[2])
    return total_s * share, total_s * (1 - share)


def _layer(i: int, key: LayerKey, times: Times, sizes: tuple[int, ...], total_only: bool, *, filled: bool) -> Layer:
    notes = ["never profiled: filled from bytes moved"] if filled else []
    if not weights_known(key):
        notes.append(
            "weights of this kind of layer are not known: taken as 0 bytes, and its output as large as its input"
        )
    missing = [size for size in sizes if size not in times]
    if missing:
        notes.append(f"interpolated at batch {', '.join(map(str, missing))}")
    if total_only and not filled:
        notes.append("forward is taken as a third of the measured total")
    weights = weights_bytes(key, f"layers.{i}")
    out_bytes = float(np.prod(output_shape(key, f"layers.{i}"))) * 4
    return Layer(
        name=f"layer{i}",
        kind=key.kind,
        forward_s=_column(times, sizes, 0),
        backward_s=_column(times, sizes, 1),
        stash_bytes=tuple(out_bytes * size for size in sizes),
        parameters=(f"layer{i}.parameters",) if weights else (),
        weights_bytes=weights,
        gradients_bytes=weights,
        optimizer_bytes=weights,
        notes=tuple(notes),
    )


def _column(times: Times, sizes: tuple[int, ...], which: int) -> tuple[float, ...]:
    known = sorted(times)
    values = [times[size][which] for size in known]
    inside = np.interp(sizes, known, values)
    # Outside its own sizes, a layer's time is proportional to the size: never flat, never zero.
    ends = [(known[0], values[0]), (known[-1], values[-1])]
    return tuple(
        ends[0][1] * size / ends[0][0]
        if size < known[0]
        else ends[1][1] * size / ends[1][0]
        if size > known[-1]
        else float(v)
        for size, v in zip(sizes, inside, strict=True)
    )


def _filled(key: LayerKey, sizes: tuple[int, ...], bandwidth: float, place: str) -> Times:
    if not bandwidth > 0:
        raise InputError("fill_bandwidth_bytes_per_s", str(bandwidth), "> 0")
    moved = key.input_bytes + float(np.prod(output_shape(key, place))) * 4
    times = {}
    for size in sizes:
        forward_s = (moved * size + weights_bytes(key, place)) / bandwidth
        times[size] = (forward_s, 2 * forward_s)
    return times


def _key(text: str, place: str) -> LayerKey:
    match = re.fullmatch(r"(\w+)(\{\S*\})\[([\d,]+)\]", text.strip())
    if match is None:
        raise InputError(place, repr(text[:80]), "'kind{json}[shape]'")
    return LayerKey(match[1], match[2], _shape(match[3], place))


def _shape(text: str, place: str) -> tuple[int, ...]:
    parts = text.split(",")
    if len(parts) > 8 or not all(part.isdigit() and len(part) < 10 and int(part) > 0 for part in parts):
        raise InputError(place, f"[{text[:40]}]", "an input shape: up to 8 whole numbers > 0")
    return tuple(int(part) for part in parts)
