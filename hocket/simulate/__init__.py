"""What a program will do on a cluster, before anything is launched: an event loop over its instructions.

Called, it predicts: `hocket.simulate(plan)` is hocket.api.simulate.
"""

from hocket.face import make_callable

make_callable(__name__)
