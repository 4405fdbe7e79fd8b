"""Number of samples in the minibatch of a PipeDream profile.

The file does not contain it, so it is inferred from the sizes of outputs.

Rules of this file: outputs are float32. A linear layer of a model with convolutions writes one vector of
`out_features` numbers for each sample. The hidden state of an LSTM is `hidden` numbers for each sample. The result is
used only if every such operator gives the same whole number.
Sizes were compared with the inputs of the published profiles: 154,140,672 bytes of 3 x 224 x 224 images are 256 samples.
"""

import re
from collections.abc import Iterable

FLOAT_BYTES = 4
UNKNOWN = (
    "the batch size of the profile is not known, so one sample stands for a whole minibatch: "
    "give --samples, the batch size with which the profile was measured"
)

# Published profiles without such an operator, by name: the Input node of squeezenet1_0 has 154,140,672 bytes.
_BY_NAME = {"squeezenet1_0": 256}
_LINEAR = re.compile(r"Linear\(in_features=\d{1,9}, out_features=(\d{1,9})\b")
_LSTM = re.compile(r"LSTM\(\d{1,9}, (\d{1,9})\)$")  # with one layer and one direction


def samples_of(nodes: Iterable[tuple[str, tuple[float, ...]]], name: str, told: int | None = None) -> tuple[int, str]:
    """Return the batch size with which a profile was measured, and a sentence that says how it is known.

    Arguments:
        nodes: description and output bytes of each operator.
        name: name of the model.
        told: number of samples given by the user; None for none.
    """
    if told is not None:
        return told, f"figures are of a minibatch of {told} samples, as told"
    nodes = list(nodes)
    images = any(description.startswith("Conv2d(") for description, _ in nodes)
    found = {size for node in nodes for size in _vectors(*node, images)}
    if len(found) == 1:
        (size,) = found
        if size >= 1 and size == int(size):
            return int(
                size
            ), f"figures are of a minibatch of {int(size)} samples, by the sizes of its operators' outputs"
    if name in _BY_NAME:
        return _BY_NAME[name], f"figures are of a minibatch of {_BY_NAME[name]} samples, as published for {name}"
    return 1, UNKNOWN


def _vectors(description: str, outputs_bytes: tuple[float, ...], images: bool) -> Iterable[float]:
    """Yield the minibatch sizes that fit the output bytes of an operator.

    Only LSTM states and, in a model with convolutions (`images`), linear layers have one known vector per sample.
    """
    linear, lstm = _LINEAR.match(description), _LSTM.match(description)
    if linear and images and int(linear[1]):
        yield outputs_bytes[0] / FLOAT_BYTES / int(linear[1])
    if lstm and len(outputs_bytes) == 3 and int(lstm[1]):
        yield from (size / FLOAT_BYTES / int(lstm[1]) for size in outputs_bytes[1:])
