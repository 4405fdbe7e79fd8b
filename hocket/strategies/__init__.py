"""Strategies: each compiles a plan's choices into a program; files that start with '_' help several of them."""
