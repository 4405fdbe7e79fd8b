"""Water filling: max-min fairness, level by level.

All levels of jobs rise together until some jobs are saturated; the others rise further.
"""
