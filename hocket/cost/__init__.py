"""Cost models: seconds of instructions and bytes of values.

They depend on a profile, a cluster and concurrent work.
"""
