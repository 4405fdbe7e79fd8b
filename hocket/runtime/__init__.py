"""Runtime: executes a program, the instructions of each device, with PyTorch.

Planning, costs, simulation and reports do not import torch. Besides this package, training/, models/ and the parts of
profiling/ that run a model do.
"""
