"""Seconds and bytes of a model's embedding, equal blocks and output, at one microbatch size.

The recompute cut (recompute_cut.py) uses them. Arrays have an entry for each recompute setting, device type and layer.
Nothing is decided here.
"""

from collections.abc import Sequence

import numpy as np

from hocket.cost.compute import Columns


class BlockFigures:
    """Seconds and bytes of layers at one microbatch size, by recompute setting ("way").

    Attributes:
        layers_s: forward seconds and backward seconds of all layers, each of shape (ways, types, layers).
        layers_bytes: bytes of saved activations, shape (ways, layers).
        block_s: seconds of forward and backward together of a block, shape (ways, types).
        ends_s: seconds of forward and backward together of embedding and output, shape (types, 2).
        stash, working: bytes of saved activations, and peak temporary bytes of a forward or backward, for embedding,
            block and output, shape (ways, 3).
        kept: bytes of weights and buffers of embedding, block and output, shape (3,).
        weights, optimizer, gradients: bytes of weights, optimizer state and gradients, shape (3,).
        border: bytes of the message from one block to the next.
        blocks: number of blocks.
    """

    def __init__(self, on: Sequence[Sequence[Columns]], samples: int) -> None:
        """Collect the seconds and bytes from the costs of a profile.

        Arguments:
            on: costs of the layers, by recompute setting and device type.
            samples: microbatch size.
        """
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
        """Bytes of weights, buffers and optimizer state of embedding, block and output.

        Arguments:
            parts: number of shards of the optimizer state, of which one is counted; by stage, or for all stages.
            more, summed: numbers of additional copies of weights and of gradients; by stage, or for all stages.

        Returns:
            Shape (3, stages); (3, 1) for a single number of shards.
        """
        divided = self.kept[:, None] + self.optimizer[:, None] / np.atleast_1d(parts)
        return divided + self.weights[:, None] * more + self.gradients[:, None] * summed

    def both_s(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Seconds that embedding and output add to each stage, shape (types, stages).

        Arguments:
            first, last: 1 for the stage with the embedding, and with the output; 0 elsewhere.
        """
        return self.ends_s[:, :1] * first + self.ends_s[:, 1:] * last
