"""The loops of `_partition_kernel`, compiled by numba: the same answers, fifty to a hundred times faster.

Loading numba takes longer than a small search, so this file is imported only where there is more to do.
"""

import numba
from numba.extending import register_jitable

from hocket.strategies.pipedream_partition import kernel

for helper in kernel.HELPERS:
    register_jitable(forceinline=True)(helper)
sweep = numba.njit(cache=True)(kernel.sweep)
