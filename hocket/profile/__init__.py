"""What a job is: layers with their times and bytes, and the tensors between them.

Called, it measures: `hocket.profile(job)` is hocket.api.profile.
"""

from hocket.face import make_callable

make_callable(__name__)
