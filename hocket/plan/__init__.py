"""Plans: the file that people read and edit, and the search that writes it.

Called, it searches: `hocket.plan(profile, cluster, batch_size)` is hocket.api.plan.
"""

from hocket.face import make_callable

make_callable(__name__)
