"""Compiler passes from an order of compute tasks to a whole program.

They add transfers, gradients, versions and frees, each in one file.
"""
