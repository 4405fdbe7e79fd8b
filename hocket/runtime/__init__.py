"""Runtime: executes a Program with PyTorch.

Only this room and the measuring half of profiling/ know torch.
"""
