"""Figures of a model of an embedding, blocks alike and an output, at one microbatch size: what a tailor measures with.

Rules of this file: arrays by way of making things again, by type of device and by layer; nothing is decided.
"""

from collections.abc import Sequence

import numpy as np

from hocket.cost.compute import Columns


class BlockFigures:
    """Figures of a model's layers at one microbatch size, by way; for embedding, block and output by default.

    Attributes:
        layers_s: forward and backward of all layers, each of shape (ways, types, layers); layers_bytes: stashes, (ways, layers).
        block_s: forward and backward of a block, shape (ways, types); ends_s: of embedding and output, (types, 2). stash, working:
            bytes; shape (ways, 3).
        kept, weights, optimizer, gradients: bytes of weights and buffers, weights alone, optimizer state and gradients; shape (3,).
            border: bytes from one block to the next.
    """

    def __init__(self, on: Sequence[Sequence[Columns]], samples: int) -> None:
        """Figures by way and device type."""
        columns = [own[0] for own in on]
        self.layers_s = tuple(
            np.array([[getattr(one.at(samples), name) for one in own] for own in on])
            for name in ("forward_s", "backward_s")
        )
        self.layers_bytes = np.array([own.at(samples).stash_bytes for own in columns])
        whole = self.layers_s[0] + self.layers_s[1]
        self.block_s, self.ends_s = whole[:, :, 1], whole[0][:, [0, -1]]
        three = [0, 1, -1]
        self.stash = self.layers_bytes[:, three]
        self.working = np.array([own.at(samples).working_bytes[three] for own in columns])
        profile = columns[0].profile
        layers = [profile.layers[k] for k in three]
        self.kept = np.array([x.weights_bytes + x.buffers_bytes for x in layers])
        self.weights = np.array([x.weights_bytes for x in layers])
        self.optimizer = np.array([x.optimizer_bytes for x in layers])
        self.gradients = np.array([x.gradients_bytes for x in layers])
        self.border = float(columns[0].at(samples).tensor_bytes[-1])
        self.blocks = len(profile.layers) - 2

    def state_of(
        self, parts: int | np.ndarray, more: float | np.ndarray = 0.0, summed: float | np.ndarray = 0.0
    ) -> np.ndarray:
        """Bytes of state, and of second copies of weights and gradients, with the optimizer state in `parts` shards.

        Shape (3, stages), or (3, 1) for one number.
        """
        divided = self.kept[:, None] + self.optimizer[:, None] / np.atleast_1d(parts)
        return divided + self.weights[:, None] * more + self.gradients[:, None] * summed

    def both_s(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Seconds of embedding and output where they are; shape (types, stages)."""
        return self.ends_s[:, :1] * first + self.ends_s[:, 1:] * last
