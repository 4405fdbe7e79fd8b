"""The loops of kernel.py, compiled by numba.

They give the same answers, fifty to a hundred times faster. Loading numba takes longer than a small search, so this
module is imported only for larger searches.
"""

import numba
from numba.extending import register_jitable

from hocket.strategies.pipedream_partition import kernel

for helper in kernel.HELPERS:
    register_jitable(forceinline=True)(helper)
sweep = numba.njit(cache=True)(kernel.sweep)
