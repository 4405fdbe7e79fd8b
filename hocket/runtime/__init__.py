"""Runtime: executes a Program with PyTorch.

Only this package and the measuring half of profiling/ import torch.
"""
