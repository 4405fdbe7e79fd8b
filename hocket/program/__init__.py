"""Program: the list of instructions that every device runs, and their values.

Strategies write programs. Engines and the simulator read them.
"""
