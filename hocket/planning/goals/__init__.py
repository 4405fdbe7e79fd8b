"""Goals of planning beyond the fastest iteration of one batch size.

These are samples per dollar, deadlines, time to accuracy, and the best sub-cluster.
"""
