"""Swapping at run time (Harmony): host buffers, CUDA streams, memory manager."""
