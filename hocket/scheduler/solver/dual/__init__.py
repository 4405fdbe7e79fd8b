"""Dual decomposition of large linear programs in which jobs share only workers."""
