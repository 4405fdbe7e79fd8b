"""The event loop of the simulator: nodes, shared resources, kernel.py."""
