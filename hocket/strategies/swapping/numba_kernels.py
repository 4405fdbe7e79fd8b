"""The loops of iteration_time.py and packing.py, compiled by numba.

They give the same answers, some hundred times faster.
"""

import numba

from hocket.strategies.swapping import iteration_time as clock
from hocket.strategies.swapping import packing as packs

data_s = numba.njit(cache=True)(clock.data_s)
pipeline_s = numba.njit(cache=True)(clock.pipeline_s)
least_maximum = numba.njit(cache=True)(packs.least_maximum)
least_sum = numba.njit(cache=True)(packs.least_sum)
