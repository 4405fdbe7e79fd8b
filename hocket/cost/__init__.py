"""Cost models: seconds of instructions and bytes of values.

The costs follow from a profile, a cluster and concurrent work.
"""
