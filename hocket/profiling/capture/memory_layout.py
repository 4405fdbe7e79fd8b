"""Order in which a tensor's elements lie in memory.

A tensor that is not contiguous, such as a transposed one, may still be dense: its bytes lie side by side, in another
order of its dimensions. With its dimensions in that order it is contiguous, and needs no copy to be sent or received.
"""

Dims = tuple[int, ...]


def memory_order(shape: Dims, stride: Dims) -> Dims:
    """Return the dimensions from outermost to innermost in memory.

    The order is the standard one if the stride is unknown or repeats elements.
    """
    usual = tuple(range(len(shape)))
    if len(stride) != len(shape) or not all(stride):
        return usual
    return tuple(sorted(usual, key=lambda d: (-stride[d], d)))


def inverse(order: Dims) -> Dims:
    """Return the inverse of a permutation of dimensions."""
    return tuple(order.index(d) for d in range(len(order)))


def is_dense(shape: Dims, stride: Dims) -> bool:
    """True if the elements lie side by side without repetition.

    Also True if the stride is unknown.
    """
    if len(stride) != len(shape):
        return True
    expected = 1
    for d in reversed(memory_order(shape, stride)):
        if shape[d] != 1 and stride[d] != expected:
            return False
        expected *= shape[d]
    return True
