"""Check that sparse gradients are used only where they can be.

Rules of this file: an embedding with `sparse=True` has a sparse gradient, for which torch has no norm and no sum in flat
memory. One device can train with it, without clipping.
"""

from collections.abc import Collection

from torch import nn

from hocket.errors import RefusedError
from hocket.profiling.job.job import Job

_HINT = "Leave sparse=True out of the layer: its gradient is then dense, with the same values."


def check_sparse_gradients(job: Job, use: str, of: Collection[str] | None = None) -> None:
    """Refuse layers with sparse gradients.

    Arguments:
        use: clause that says what needs dense gradients, such as "clip_grad_norm needs their norm".
        of: names of the parameters to check; by default all.

    Raises:
        RefusedError: a layer has sparse gradients; the error names it.
    """
    trained = {id(p) for name, p in job.model.named_parameters() if p.requires_grad and (of is None or name in of)}
    for name, module in job.model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse and id(module.weight) in trained:
            found = f"{type(module).__name__}(sparse=True), with sparse gradients, but {use}"
            raise RefusedError(f"Job.model.{name}".rstrip("."), found, "dense gradients", _HINT)
